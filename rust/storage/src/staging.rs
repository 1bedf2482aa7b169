//! Files that are being written to a local disk, before they appear under their own name: under a staging name, or under
//! none at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Durability;
use trinitylake_base::process_id::process_id;

/// A file under a staging name, removed again when this is dropped.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) path: PathBuf,
    pub(super) handle: File,
}

impl Staged {
    /// Writes the bytes next to the file they are for. The name is short and owes nothing to that of the
    /// file, which may be as long as the file system allows.
    pub(super) fn write(file: &Path, bytes: &[u8], durability: Durability) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut staged = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = file.with_file_name(format!("_staged#{}{number:09}", process_id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(handle) => break Self { path, handle },
                // Of an earlier process with the same id, or of another machine.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        staged.handle.write_all(bytes)?;
        if durability == Durability::Fsync {
            staged.handle.sync_all()?;
        }
        Ok(staged)
    }

    pub(super) fn is_same_file(&self, other: &Path) -> bool {
        are_same(self.path.symlink_metadata(), other)
    }
}

fn are_same(ours: io::Result<Metadata>, other: &Path) -> bool {
    match (ours, other.symlink_metadata()) {
        (Ok(ours), Ok(theirs)) => ours.dev() == theirs.dev() && ours.ino() == theirs.ino(),
        _ => false,
    }
}

/// Before Linux 6.0 the mask of the process was forgotten for files without a name where the file system knows no access
/// lists: all could write to them. Such files get a staging name, and so do those of a process that has no mask.
#[cfg(any(target_os = "linux", test))]
pub(super) fn check_mask(file: &Metadata) -> io::Result<()> {
    let is_for_all = file.mode() & 0o777 == 0o666;
    if is_for_all { Err(ErrorKind::Unsupported.into()) } else { Ok(()) }
}

/// A file without a name, which is gone when nobody has it open any more and it was not linked to one (`O_TMPFILE`). It
/// spares a name that comes and goes, a quarter of what the system does to create a file by a link. Only for files that
/// need not last: a file system without a journal may forget a synced file that had no name when it was synced.
#[derive(Debug)]
pub(super) struct Unnamed(File);

#[cfg(target_os = "linux")]
impl Unnamed {
    /// Writes the bytes to a file in the folder of the one that they are for.
    pub(super) fn write(file: &Path, bytes: &[u8]) -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags, open};
        let folder = file.parent().ok_or(ErrorKind::NotFound)?;
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        // As `OpenOptions` creates files: the mask of the process takes away what it is to.
        let mut handle = File::from(open(folder, flags, Mode::from_raw_mode(0o666))?);
        check_mask(&handle.metadata()?)?;
        handle.write_all(bytes)?;
        Ok(Self(handle))
    }

    /// Gives it its name, which fails if the name is taken.
    pub(super) fn link(&self, file: &Path) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, linkat};
        use rustix::io::Errno;
        use std::os::fd::AsRawFd;
        let linked = match linkat(&self.0, "", CWD, file, AtFlags::EMPTY_PATH) {
            // Before Linux 6.10 that takes a privilege, and this does not.
            Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
                let by_descriptor = format!("/proc/self/fd/{}", self.0.as_raw_fd());
                linkat(CWD, by_descriptor, CWD, file, AtFlags::SYMLINK_FOLLOW)
            }
            linked => linked,
        };
        match linked {
            // See `put_if_absent`: only the file says whether it is ours.
            Err(_) if are_same(self.0.metadata(), file) => Ok(()),
            // Not that somebody removed the folder: nothing leads to the file, as where there is no `/proc`.
            Err(Errno::NOENT) if file.parent().is_some_and(Path::exists) => {
                Err(ErrorKind::Unsupported.into())
            }
            linked => Ok(linked?),
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Unnamed {
    pub(super) fn write(_: &Path, _: &[u8]) -> io::Result<Self> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(super) fn link(&self, _: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone already after a rename; and a leftover is hidden from listings.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether an error of [`Unnamed`] says what its file system is like. Others say what happened, and nothing of the next
/// file: somebody removed a folder, the disk was full, too many files were open.
pub(super) fn has_no_unnamed_files(error: &io::Error) -> bool {
    refuses_hard_links(error) || matches!(error.kind(), ErrorKind::IsADirectory | ErrorKind::InvalidInput)
}

/// `name#digits`: a file that its writer did not finish, ours or that of another library.
pub(super) fn is_staging_name(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

pub(super) fn refuses_hard_links(error: &io::Error) -> bool {
    // The staged file was just created in the same folder, so a lack of permission is not the cause:
    // EPERM is how Linux says that a file system has no links.
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::Unsupported
            | ErrorKind::TooManyLinks
            | ErrorKind::CrossesDevices
    )
}

#[cfg(test)]
mod tests;
