//! The files below a folder: whole listings, and one step of a walk.

use std::{fs, io};

use super::file_operations::{Folder, file_info, is_absent};
use super::temporary_files::is_temporary_name;
use crate::storage_trait::{FileInfo, Place, Step, split_prefix};
use trinitylake_base::error::{Error, Result};
use trinitylake_base::root_uri::check_path;

impl Folder {
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<FileInfo>> {
        let (folder, name) = split_prefix(prefix)?;
        let start = folder.trim_end_matches('/');
        let mut files = Vec::new();
        match self.root_folder.check_folder(start, "list") {
            Err(Error::FileNotFound { .. }) => return Ok(files),
            checked => checked?,
        }
        let mut pending = vec![folder.to_owned()];
        while let Some(folder) = pending.pop() {
            let failure = |error: io::Error| self.failure("list", &folder, &error);
            let entries = match fs::read_dir(self.root_folder.full_path(&folder)) {
                Err(error) if is_absent(&error) => continue,
                entries => entries.map_err(failure)?,
            };
            for entry in entries {
                let entry = entry.map_err(failure)?;
                let os_name = entry.file_name();
                let Some(entry_name) = os_name.to_str() else { continue };
                if !entry_name.starts_with(name) || is_temporary_name(entry_name) || check_path(entry_name).is_err() {
                    continue;
                }
                let kind = entry.file_type().map_err(failure)?;
                let path = format!("{folder}{entry_name}");
                if kind.is_dir() && name.is_empty() {
                    pending.push(path + "/");
                } else if kind.is_file() {
                    match entry.metadata() {
                        Ok(metadata) => files.push(file_info(path, &metadata)),
                        // The file was deleted after the folder was read.
                        Err(error) if is_absent(&error) => {}
                        Err(error) => return Err(failure(error)),
                    }
                }
            }
        }
        files.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        Ok(files)
    }

    /// Returns the files of one folder, including unfinished ones, and the folders in it. Links are not followed.
    pub(super) fn walk(&self, folder: &str) -> Result<Step> {
        let mut step = Step::default();
        match self.root_folder.check_folder(folder.trim_end_matches('/'), "list") {
            Err(Error::FileNotFound { .. }) => return Ok(step),
            checked => checked?,
        }
        let failure = |error: io::Error| self.failure("list", folder, &error);
        let entries = match fs::read_dir(self.root_folder.full_path(folder)) {
            Err(error) if is_absent(&error) => return Ok(step),
            entries => entries.map_err(failure)?,
        };
        for entry in entries {
            let entry = entry.map_err(failure)?;
            let os_name = entry.file_name();
            let Some(name) = os_name.to_str().filter(|name| check_path(name).is_ok()) else { continue };
            let kind = entry.file_type().map_err(failure)?;
            let path = format!("{folder}{name}");
            if kind.is_dir() {
                step.places.push(Place { folder: path + "/", after: None });
            } else if kind.is_file() {
                match entry.metadata() {
                    Ok(metadata) => step.files.push(file_info(path, &metadata)),
                    // The file was deleted after the folder was read.
                    Err(error) if is_absent(&error) => {}
                    Err(error) => return Err(failure(error)),
                }
            }
        }
        Ok(step)
    }
}
