use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// To give a file a staging name and to take it away again was a quarter of what the system did for an unsynced root.
/// Where there are files without a name, one becomes visible whole, with the rights of any other file, if its name is free.
#[cfg(target_os = "linux")]
#[test]
fn a_file_without_a_name_gets_one_that_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    // A file system may have none.
    let Ok(ours) = Unnamed::write(&file, b"ours") else { return };
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nobody sees it");
    ours.link(&file).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "ours");
    fs::write(folder.path().join("other"), "other").unwrap();
    let mode = |name: &str| folder.path().join(name).metadata().unwrap().mode();
    assert_eq!(mode("file"), mode("other"));
    // Failure mode 28: the link was made, but the reply said otherwise.
    ours.link(&file).unwrap();
    let theirs = Unnamed::write(&file, b"theirs").unwrap();
    assert_eq!(theirs.link(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    drop(theirs);
    assert_eq!(fs::read_to_string(&file).unwrap(), "ours");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left of it");
}

/// Before Linux 6.0 a root without a name could be written by everybody, as if the process had no mask.
#[test]
fn a_file_that_all_may_write_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (mode, is_taken) in [(0o666, false), (0o644, true), (0o600, true), (0o664, true)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(check_mask(&file.metadata().unwrap()).is_ok(), is_taken, "{mode:o}");
    }
}

/// Of a server whose disk had been full for a moment, or that had too many files open, each root had a staging name until
/// it was started anew.
#[test]
fn what_happened_once_is_not_what_the_file_system_is_like() {
    // EOPNOTSUPP, EISDIR before Linux 3.11, EINVAL, ENOSYS, EPERM, EXDEV; ENOSPC, EDQUOT, EMFILE, ENFILE, EINTR, EIO, ENOENT.
    for code in [95, 21, 22, 38, 1, 18] {
        assert!(has_no_unnamed_files(&io::Error::from_raw_os_error(code)), "{code}");
    }
    for code in [28, 122, 24, 23, 4, 5, 2] {
        assert!(!has_no_unnamed_files(&io::Error::from_raw_os_error(code)), "{code}");
    }
}

/// Where nothing led to a file without a name (there was no `/proc`, and Linux was older than 6.10), that was taken for a
/// folder that somebody had removed: the next root was written twice as well.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_nothing_leads_to_is_not_one_in_a_folder_that_is_gone() {
    use rustix::fs::{Mode, OFlags, open};
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    // One that can never have a name, which the system says in the same way.
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
    let Ok(file) = open(&inner, flags, Mode::from_raw_mode(0o666)) else { return };
    let unnamed = Unnamed(file.into());
    let kind = || unnamed.link(&inner.join("file")).unwrap_err().kind();
    assert_eq!(kind(), ErrorKind::Unsupported);
    fs::remove_dir(&inner).unwrap();
    assert_eq!(kind(), ErrorKind::NotFound);
}
