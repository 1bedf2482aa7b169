//! What the system of this machine does with a file system, and how it is asked to write one.

use std::fs::File;
use std::io;

/// What decides whether a file system is synced as a whole. Whatever is not known speaks against it.
pub(super) trait Machine: Send + Sync {
    /// Whether one sync of the file system of this folder makes all last that lies on it, tells of each error, and costs
    /// no more than what is to be written.
    fn may_sync_together(&self, folder: &File) -> bool;

    /// What is written and not on disk, of all file systems.
    fn dirty_bytes(&self) -> Option<u64>;
}

pub(super) struct ThisMachine;

#[cfg(target_os = "linux")]
pub(super) use linux::{begin_bytes, bytes_to_disk, file_system_to_disk};

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::sync::OnceLock;

    use super::*;

    /// Of ext2, ext3 and ext4. Btrfs writes a whole transaction instead, and for others nobody has looked.
    const EXT4_MAGIC: u64 = 0xEF53;
    /// Before, `syncfs` did not tell of what could not be written.
    const FIRST_KERNEL: (u32, u32) = (5, 8);
    /// In bytes. What we look for is near the beginning.
    const MEMINFO_SIZE_BYTES: usize = 4096;

    impl Machine for ThisMachine {
        fn may_sync_together(&self, folder: &File) -> bool {
            static TELLS_OF_ERRORS: OnceLock<bool> = OnceLock::new();
            let tells_of_errors = TELLS_OF_ERRORS.get_or_init(|| {
                fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|release| is_new_enough(&release))
            });
            *tells_of_errors
                && rustix::fs::fstatfs(folder).is_ok_and(|found| found.f_type as u64 == EXT4_MAGIC)
        }

        fn dirty_bytes(&self) -> Option<u64> {
            // Read from its beginning each time, so a forked child may share it.
            static MEMINFO: OnceLock<Option<File>> = OnceLock::new();
            let mut text = [0; MEMINFO_SIZE_BYTES];
            let meminfo = MEMINFO.get_or_init(|| File::open("/proc/meminfo").ok()).as_ref()?;
            let size = meminfo.read_at(&mut text, 0).ok()?;
            dirty_bytes(std::str::from_utf8(&text[..size]).ok()?)
        }
    }

    pub(super) fn is_new_enough(release: &str) -> bool {
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
        (major, minor) >= FIRST_KERNEL
    }

    pub(super) fn dirty_bytes(meminfo: &str) -> Option<u64> {
        let kibibytes = |name: &str| -> Option<u64> {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_suffix("kB")?.trim().parse().ok()
        };
        Some((kibibytes("Dirty:")? + kibibytes("Writeback:")?) << 10)
    }

    pub(in super::super) fn begin_bytes(file: &File) -> io::Result<()> {
        sync_file_range(file, libc::SYNC_FILE_RANGE_WRITE)
    }

    /// Writes the bytes of a file, and waits for them: a sync without what leads to the file, and without waiting for the
    /// cache of the disk.
    pub(in super::super) fn bytes_to_disk(file: &File) -> io::Result<()> {
        let (before, after) = (libc::SYNC_FILE_RANGE_WAIT_BEFORE, libc::SYNC_FILE_RANGE_WAIT_AFTER);
        sync_file_range(file, before | libc::SYNC_FILE_RANGE_WRITE | after)?;
        // Bytes that found no place when somebody else had the disk written are dropped, and nobody is told. Our files
        // have no holes.
        let metadata = file.metadata()?;
        if metadata.blocks() * 512 < metadata.len() {
            return Err(io::Error::other("the system has dropped bytes that it could not write"));
        }
        Ok(())
    }

    #[allow(
        unsafe_code,
        reason = "no library that we have offers it; without it a lost file would not be noticed"
    )]
    fn sync_file_range(file: &File, flags: libc::c_uint) -> io::Result<()> {
        // SAFETY: takes numbers alone, and the descriptor is open as long as the file is borrowed.
        match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// One sync of the file system, and one of the folder. The latter is for what the former leaves out: without a journal
    /// it has the disk empty its cache before it has waited for the inodes and folders that it wrote, and where the file
    /// system was stopped, or became read-only after an error, it says "done" (Linux before 6.12).
    pub(in super::super) fn file_system_to_disk(folder: &File) -> io::Result<()> {
        rustix::fs::syncfs(folder)?;
        folder.sync_all()
    }
}

#[cfg(not(target_os = "linux"))]
impl Machine for ThisMachine {
    fn may_sync_together(&self, _: &File) -> bool {
        false
    }

    fn dirty_bytes(&self) -> Option<u64> {
        None
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::*;

    fn never() -> io::Result<()> {
        Err(rustix::io::Errno::NOSYS.into())
    }

    pub(in super::super) fn begin_bytes(_: &File) -> io::Result<()> {
        never()
    }

    pub(in super::super) fn bytes_to_disk(_: &File) -> io::Result<()> {
        never()
    }

    pub(in super::super) fn file_system_to_disk(_: &File) -> io::Result<()> {
        never()
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{begin_bytes, bytes_to_disk, file_system_to_disk};

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::{dirty_bytes, is_new_enough};
    use super::*;

    #[test]
    fn what_the_system_says_of_itself_is_understood_or_speaks_against() {
        for (release, expected) in [
            ("5.8.0", true),
            ("5.10.0-28-amd64\n", true),
            ("6.18.44-fc", true),
            ("10.0", true),
            ("5.7.19", false),
            ("4.19.0-26", false),
            ("5", false),
            ("", false),
            ("x.y", false),
        ] {
            assert_eq!(is_new_enough(release), expected, "{release}");
        }
        let meminfo = "MemTotal:  1024 kB\nDirty:               196 kB\nWriteback:             4 kB\nWritebackTmp: 9 kB\n";
        assert_eq!(dirty_bytes(meminfo), Some(200 << 10));
        for part in ["Dirty: 1 kB\n", "Dirty: 1\nWriteback: 1 kB\n", "Dirty: x kB\nWriteback: 1 kB\n", ""] {
            assert_eq!(dirty_bytes(part), None, "{part}");
        }
        assert!(ThisMachine.dirty_bytes().is_some());
        assert!(!ThisMachine.may_sync_together(&File::open("/proc").unwrap()));
    }

    /// The disk had no place for the bytes of a file. The system dropped them when it wrote everything, and said "done" to
    /// that and to a sync of the file. A file with a hole is what is left then.
    #[test]
    fn bytes_that_were_dropped_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("file")).unwrap();
        bytes_to_disk(&file).unwrap();
        std::io::Write::write_all(&mut &file, &[7; 10_000]).unwrap();
        begin_bytes(&file).unwrap();
        // Others may count their blocks later.
        let is_whole = bytes_to_disk(&file).is_ok();
        assert!(is_whole || !ThisMachine.may_sync_together(&File::open(folder.path()).unwrap()));
        file.set_len(1 << 20).unwrap();
        assert!(bytes_to_disk(&file).unwrap_err().to_string().contains("dropped"));
    }
}
