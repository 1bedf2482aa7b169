//! Containment: no path leaves the root of a lakehouse on a local disk through symbolic links.
//!
//! Nothing outside of the root is read or written through a symbolic link. Folders are checked once per handle, files on
//! every access: this stops a link that came with a copied lakehouse, not someone who swaps folders while we run.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;

use crate::failure::Request;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::{RootUri, check_path};

/// Folders that a handle remembers as checked; a full set is emptied.
const MAX_KNOWN_FOLDERS: usize = 16_384;

/// Relative folders of which something was found out that stays true as long as nobody removes them.
#[derive(Debug, Default)]
pub(super) struct KnownFolders(Mutex<HashSet<String>>);

impl KnownFolders {
    fn folders(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has(&self, folder: &str) -> bool {
        self.folders().contains(folder)
    }

    pub(super) fn add(&self, folder: &str) {
        let mut folders = self.folders();
        if folders.len() >= MAX_KNOWN_FOLDERS {
            folders.clear();
        }
        folders.insert(folder.to_owned());
    }

    pub(super) fn forget(&self) {
        self.folders().clear();
    }
}

/// The folder of a root, and which folders below it really lie there.
#[derive(Debug)]
pub(super) struct Containment {
    root: RootUri,
    path: PathBuf,
    /// Real path of the root, known once it exists.
    real_root: OnceLock<PathBuf>,
    /// Device and number of the folder at the root, known once it exists.
    identity: OnceLock<(u64, u64)>,
    contained: KnownFolders,
}

impl Containment {
    pub(super) fn new(root: &RootUri) -> Self {
        Containment {
            root: root.clone(),
            path: PathBuf::from(root.prefix()),
            real_root: OnceLock::new(),
            identity: OnceLock::new(),
            contained: KnownFolders::default(),
        }
    }

    /// Is the folder at the root still the one that it was? A disk that was unmounted leaves an empty one, and a lakehouse
    /// that was moved may leave none, or an older copy. What a handle remembers says nothing of such a place: a version that
    /// was made there would be answered, and gone when the disk is back.
    pub(super) fn check_root(&self) -> Result<()> {
        let found = self.path.metadata().map(|root| (root.dev(), root.ino()));
        let Some(known) = self.identity.get() else {
            _ = found.map(|found| self.identity.set(found)); // else it is still to be made
            return Ok(());
        };
        let why = match found {
            Ok(found) if found == *known => return Ok(()),
            Ok(_) => "is another one than when the lakehouse was opened".to_owned(),
            Err(error) => format!("is not there: {error}"),
        };
        Err(Error::StorageRefused(format!(
            "the folder at {} {why}; nothing is written there: was its disk unmounted, or the lakehouse moved? Open it \
             again, once it is where it should be",
            self.root.as_str()
        )))
    }

    pub(super) fn root(&self) -> &RootUri {
        &self.root
    }

    /// Full path of a relative path, with links not resolved.
    pub(super) fn full_path(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Whether the folder is known to be below the root.
    pub(super) fn is_known(&self, folder: &str) -> bool {
        self.contained.has(folder)
    }

    /// Forgets all known folders, after one was removed.
    pub(super) fn forget(&self) {
        self.contained.forget();
    }

    /// Where a file that is to be read really is, and what it is. Anything that is not a regular file is
    /// not there: a pipe would block, a device would never end.
    pub(super) fn look_up(&self, path: &str, verb: &'static str) -> Result<(PathBuf, Metadata)> {
        check_path(path)?;
        self.check_folder(parent(path), verb).map_err(|error| match error {
            Error::FileNotFound { .. } => Error::FileNotFound { path: path.to_owned() },
            error => error,
        })?;
        let failure = |error: io::Error| self.failure(verb, path, &error);
        let mut file = self.path.join(path);
        let mut metadata = file.symlink_metadata().map_err(failure)?;
        if metadata.is_symlink() {
            file = file.canonicalize().map_err(|error| match Errno::from_io_error(&error) {
                // Links in a circle lead nowhere, like one to a file that is not there.
                Some(Errno::LOOP) => Error::FileNotFound { path: path.to_owned() },
                _ => failure(error),
            })?;
            if !file.starts_with(self.real_root(verb)?) {
                return Err(self.leads_out(path));
            }
            metadata = file.metadata().map_err(failure)?;
        }
        if !metadata.is_file() {
            return Err(Error::FileNotFound { path: path.to_owned() });
        }
        Ok((file, metadata))
    }

    /// No folder is made behind a link that leads out: checks the deepest folder that exists.
    pub(super) fn check_existing_ancestor(&self, folder: &str) -> Result<()> {
        match self.check_folder(folder, "read") {
            Err(Error::FileNotFound { .. }) if folder.is_empty() => Ok(()),
            Err(Error::FileNotFound { .. }) => self.check_existing_ancestor(parent(folder)),
            checked => checked,
        }
    }

    /// Refuses a folder that a symbolic link takes out of the root. Below a folder that is contained, a real
    /// folder is; only a link needs to be followed.
    pub(super) fn check_folder(&self, folder: &str, verb: &'static str) -> Result<()> {
        if self.contained.has(folder) {
            return Ok(());
        }
        let full = self.path.join(folder);
        let failure = |error: io::Error| self.failure(verb, folder, &error);
        let is_link = folder.is_empty() || {
            self.check_folder(parent(folder), verb)?;
            full.symlink_metadata().map_err(failure)?.is_symlink()
        };
        if is_link && !full.canonicalize().map_err(failure)?.starts_with(self.real_root(verb)?) {
            return Err(self.leads_out(folder));
        }
        self.contained.add(folder);
        Ok(())
    }

    fn real_root(&self, verb: &'static str) -> Result<&Path> {
        if let Some(real) = self.real_root.get() {
            return Ok(real);
        }
        let real = self.path.canonicalize().map_err(|error| self.failure(verb, "", &error))?;
        Ok(self.real_root.get_or_init(|| real))
    }

    fn leads_out(&self, path: &str) -> Error {
        Error::InvalidLocation(format!(
            "{}: a symbolic link leads out of the lakehouse; nothing outside of the root is read or written",
            self.root.join(path)
        ))
    }

    /// The kind and message for a failure of the disk at this path.
    pub(super) fn failure(&self, verb: &'static str, path: &str, error: &io::Error) -> Error {
        Request { verb, uri: &self.root.join(path), path }.local_failure(error)
    }
}

/// The folder of a relative path; empty for the root.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}
