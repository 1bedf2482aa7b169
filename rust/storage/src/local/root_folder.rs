//! `RootFolder`: checks that no path leaves the root of a lakehouse on a local disk through a symbolic link.
//!
//! Folders are checked once per handle, files on every access. This protects against links that were copied together
//! with a lakehouse, but not against an attacker that replaces folders while a process runs.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use file_id::{FileId, get_file_id};

use crate::error_mapping::Request;
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::{RootUri, check_path};

/// Maximum number of folders that a handle remembers as checked. A full set is emptied.
const MAX_KNOWN_FOLDERS: usize = 16_384;

/// Relative paths of folders for which a fact is known, e.g. "its entry is durable", until the folder is removed.
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

/// Root folder, and the folders below it that are known not to leave it through a link.
#[derive(Debug)]
pub(super) struct RootFolder {
    root: RootUri,
    path: PathBuf,
    /// Real path of the root, set once the root exists.
    real_root: OnceLock<PathBuf>,
    /// Identity of the root folder, set once it exists.
    identity: OnceLock<FileId>,
    contained: KnownFolders,
}

impl RootFolder {
    pub(super) fn new(root: &RootUri) -> Self {
        RootFolder {
            root: root.clone(),
            path: root.local_path(),
            real_root: OnceLock::new(),
            identity: OnceLock::new(),
            contained: KnownFolders::default(),
        }
    }

    /// Refuses to write if the root is not the same folder as when this handle first saw it. After a disk was
    /// unmounted, an empty folder is in its place; after a lakehouse was moved, no folder or an older copy is. A
    /// version that was created there would be reported as committed, and would be missing when the original folder is
    /// back.
    pub(super) fn check_root(&self) -> Result<()> {
        let found = get_file_id(&self.path);
        let Some(known) = self.identity.get() else {
            _ = found.map(|found| self.identity.set(found)); // else it is still to be made
            return Ok(());
        };
        let why = match found {
            Ok(found) if found == *known => return Ok(()),
            Ok(_) => "is not the one that the lakehouse was opened in".to_owned(),
            Err(error) => format!("cannot be read: {error}"),
        };
        Err(Error::StorageRefused(format!(
            "the folder at {} {why}, so nothing is written there. Its disk may have been unmounted, or the lakehouse \
             moved: open the lakehouse again once the folder is back",
            self.root.as_str()
        )))
    }

    pub(super) fn uri(&self) -> &RootUri {
        &self.root
    }

    /// Returns the full path of a relative path, without resolving links.
    pub(super) fn full_path(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_end_matches('/'))
    }

    /// Whether a check has found that the folder does not leave the root.
    pub(super) fn is_known(&self, folder: &str) -> bool {
        self.contained.has(folder)
    }

    /// Removes all folders from the set of checked ones, after a folder has disappeared.
    pub(super) fn forget(&self) {
        self.contained.forget();
    }

    /// Returns the real path and metadata of a file to be read. A file that is not regular counts as absent: reading a
    /// pipe would block, and a device has no end.
    pub(super) fn look_up(&self, path: &str, verb: &'static str) -> Result<(PathBuf, Metadata)> {
        check_local_path(path)?;
        self.check_folder(parent(path), verb).map_err(|error| match error {
            Error::FileNotFound { .. } => Error::FileNotFound { path: path.to_owned() },
            error => error,
        })?;
        let failure = |error: io::Error| self.failure(verb, path, &error);
        let mut file = self.path.join(path);
        let mut metadata = file.symlink_metadata().map_err(failure)?;
        if metadata.is_symlink() {
            file = file.canonicalize().map_err(|error| {
                // A cycle of links leads to no file, like a link to a missing file.
                if is_link_cycle(&error) { Error::FileNotFound { path: path.to_owned() } } else { failure(error) }
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

    /// Checks the deepest existing folder, so that no folder is created behind a link that leads out of the root.
    pub(super) fn check_existing_ancestor(&self, folder: &str) -> Result<()> {
        match self.check_folder(folder, "read") {
            Err(Error::FileNotFound { .. }) if folder.is_empty() => Ok(()),
            Err(Error::FileNotFound { .. }) => self.check_existing_ancestor(parent(folder)),
            checked => checked,
        }
    }

    /// Refuses a folder that leaves the root through a symbolic link. A real folder inside a checked folder needs no
    /// further check; only links are resolved.
    pub(super) fn check_folder(&self, folder: &str, verb: &'static str) -> Result<()> {
        if self.contained.has(folder) {
            return Ok(());
        }
        if !folder.is_empty() {
            check_local_path(folder)?;
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

    /// Error for a failed disk operation at this path.
    pub(super) fn failure(&self, verb: &'static str, path: &str, error: &io::Error) -> Error {
        Request { verb, uri: &self.root.join(path), path }.local_failure(error)
    }
}

/// Refuses an invalid path, and on Windows also a path that would mean another file: `\` separates folders, `:` begins
/// a stream of a file, a dot or a space at the end is dropped, and names such as `con` are devices.
pub(super) fn check_local_path(path: &str) -> Result<()> {
    check_path(path)?;
    match path.split('/').find(|name| cfg!(windows) && !is_windows_name(name)) {
        None => Ok(()),
        Some(name) => Err(Error::InvalidLocation(format!("`{path}`: Windows has no files named `{name}`"))),
    }
}

pub(super) fn is_windows_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_device = match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" => true,
        stem => stem.strip_prefix("COM").or(stem.strip_prefix("LPT")).is_some_and(|port| {
            port.chars().count() == 1 && port.contains(|c: char| c.is_ascii_digit() || "¹²³".contains(c))
        }),
    };
    !is_device && !name.ends_with(['.', ' ']) && !name.contains(['\\', ':', '*', '?', '"', '<', '>', '|'])
}

#[cfg(unix)]
fn is_link_cycle(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::LOOP)
}

/// `ERROR_CANT_RESOLVE_FILENAME`.
#[cfg(windows)]
fn is_link_cycle(error: &io::Error) -> bool {
    error.raw_os_error() == Some(1921)
}

/// The folder of a relative path; empty for the root.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}
