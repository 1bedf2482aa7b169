//! Locks of processes on single bytes of a file (`tables/table_turns.py`). They wait for nobody, so the GIL is kept:
//! Python's own `fcntl.lockf` gives it up each time, and where other threads want it the caller then waits for them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// An empty file, open for the life of the process: to close it would give back all locks that the process has on it.
#[pyclass(frozen, module = "trinitylake._core")]
pub struct ByteLocks {
    file: &'static File,
}

#[pymethods]
impl ByteLocks {
    /// Makes the file if it is not there. `OSError` if it cannot be opened, is a link, or is somebody else's.
    #[new]
    fn open(path: PathBuf, owner_id: u32) -> PyResult<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        if file.metadata()?.uid() != owner_id {
            return Err(to_python(Errno::EACCES));
        }
        Ok(ByteLocks { file: Box::leak(Box::new(file)) })
    }

    /// Whether the byte is locked for this process now. `OSError` where the file system has no locks.
    fn try_lock(&self, position: i64) -> PyResult<bool> {
        match self.set(true, position) {
            Ok(()) => Ok(true),
            Err(Errno::EACCES | Errno::EAGAIN) => Ok(false),
            Err(error) => Err(to_python(error)),
        }
    }

    /// The process that has the byte, 0 for one that the system does not name; `None` if it is free, or this one's.
    /// `OSError` where the file system has no locks.
    fn holder(&self, position: i64) -> PyResult<Option<i32>> {
        let mut lock = one_byte(true, position);
        fcntl(self.file, FcntlArg::F_GETLK(&mut lock)).map_err(to_python)?;
        Ok((lock.l_type != one_byte(false, position).l_type).then_some(lock.l_pid.max(0)))
    }

    /// Gives the byte back. `OSError` where the file system has no locks.
    fn unlock(&self, position: i64) -> PyResult<()> {
        self.set(false, position).map_err(to_python)
    }
}

impl ByteLocks {
    fn set(&self, is_locked: bool, position: i64) -> Result<(), Errno> {
        fcntl(self.file, FcntlArg::F_SETLK(&one_byte(is_locked, position))).map(drop)
    }
}

/// The system's constants have the type of the field on macOS, and another one on Linux.
fn one_byte(is_locked: bool, position: i64) -> libc::flock {
    let kind = if is_locked { libc::F_WRLCK } else { libc::F_UNLCK };
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: position as _,
        l_len: 1,
        l_pid: 0,
    }
}

fn to_python(error: Errno) -> PyErr {
    PyOSError::new_err((error as i32, error.desc()))
}
