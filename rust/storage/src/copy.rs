//! Copies files from one root to another, many at the same time, and compares each with its expected size.

use futures::{StreamExt, TryStreamExt, stream};

use crate::storage_trait::Storage;
use trinitylake_base::error::{Error, Result};

/// Maximum number of files that are copied at the same time, unless they are large.
const PARALLEL_COPIES: usize = 32;
/// Size above which files are copied one at a time, because each file is in memory as a whole.
const LARGE_FILE_SIZE_BYTES: u64 = 16 << 20;

/// A file to be copied to the same path below another root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedFile {
    pub path: String,
    /// Size according to the file that references this file.
    pub size_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub size_bytes: u64,
    /// Number of files that already existed in the target.
    pub present: u64,
}

/// Copies files with unique names. With `is_resumed`, skips files that exist in the target with the right size. With
/// `is_same_store`, lets the store copy the files if it can. `CorruptFile` if a file is missing or has another size.
pub async fn copy_files(
    source: &dyn Storage,
    target: &dyn Storage,
    files: Vec<CopiedFile>,
    is_resumed: bool,
    is_same_store: bool,
) -> Result<Copied> {
    let (large, small): (Vec<CopiedFile>, Vec<CopiedFile>) =
        files.into_iter().partition(|file| file.size_bytes.is_some_and(|size| size > LARGE_FILE_SIZE_BYTES));
    let mut copied = Copied::default();
    for (files, parallel) in [(small, PARALLEL_COPIES), (large, 1)] {
        let mut done = stream::iter(files)
            .map(|file| copy_file(source, target, file, is_resumed, is_same_store))
            .buffer_unordered(parallel);
        while let Some(one) = done.try_next().await? {
            match one {
                Some(size_bytes) => {
                    copied.files += 1;
                    copied.size_bytes += size_bytes;
                }
                None => copied.present += 1,
            }
        }
    }
    Ok(copied)
}

/// Copies one file. Returns its size, or `None` if it already existed in the target.
async fn copy_file(
    source: &dyn Storage,
    target: &dyn Storage,
    file: CopiedFile,
    is_resumed: bool,
    is_same_store: bool,
) -> Result<Option<u64>> {
    let CopiedFile { path, size_bytes } = file;
    if is_resumed {
        match target.head(&path).await {
            Ok(there) if size_bytes.is_none_or(|expected| expected == there.size_bytes) => return Ok(None),
            Ok(_) | Err(Error::FileNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let check = |found: u64| match size_bytes {
        Some(expected) if expected != found => {
            Err(Error::corrupt(&*path, format!("it has {found} bytes instead of {expected}")))
        }
        _ => Ok(()),
    };
    if is_same_store && target.copy_within(source.root(), &path).await? {
        let found = target.head(&path).await?.size_bytes;
        check(found)?;
        return Ok(Some(found));
    }
    let bytes = match source.get(&path).await {
        Err(Error::FileNotFound { .. }) => {
            return Err(Error::corrupt(path, "it is missing, and cannot be copied"));
        }
        bytes => bytes?,
    };
    let found = bytes.len() as u64;
    check(found)?;
    target.put_unique(&path, bytes).await?;
    Ok(Some(found))
}

#[cfg(test)]
mod tests;
