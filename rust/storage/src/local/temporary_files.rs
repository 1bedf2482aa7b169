//! Temporary files: files that are written under a temporary name before they appear under their final name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use file_id::get_file_id;

use crate::storage_trait::Durability;

/// A file under a temporary name, removed on drop.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    pub(super) path: PathBuf,
    pub(super) handle: File,
}

impl TemporaryFile {
    /// Writes the bytes to a temporary file in the folder of the target. The temporary name does not contain the
    /// target's name, which may be as long as the file system allows.
    pub(super) fn write(file: &Path, bytes: &[u8], durability: Durability) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut temporary = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = file.with_file_name(format!("_staged#{}{number:09}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(handle) => break Self { path, handle },
                // The file was left by an earlier process with the same id, or created on another machine.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        temporary.handle.write_all(bytes)?;
        if durability == Durability::Fsync {
            temporary.handle.sync_all()?;
        }
        Ok(temporary)
    }

    pub(super) fn is_same_file(&self, other: &Path) -> bool {
        matches!((get_file_id(&self.path), get_file_id(other)), (Ok(ours), Ok(theirs)) if ours == theirs)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // After a rename the file no longer exists, and listings hide a leftover, so errors are ignored.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a name has the form `name#digits`, which this library and `object_store` give to unfinished files.
pub(super) fn is_temporary_name(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(super) fn refuses_hard_links(error: &io::Error) -> bool {
    // The temporary file was just created in the same folder, so a lack of permission is not the cause: Linux reports
    // EPERM if a file system has no hard links, Windows ERROR_INVALID_FUNCTION.
    (cfg!(windows) && error.raw_os_error() == Some(1))
        || matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::Unsupported | ErrorKind::TooManyLinks | ErrorKind::CrossesDevices
        )
}
