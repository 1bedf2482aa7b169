//! Copying files from one root to another: many at once, each compared with the size that it must have.

use futures::{StreamExt, TryStreamExt, stream};

use crate::storage::Storage;
use trinitylake_base::error::{Error, Result};

/// Files that are under way at once, unless they are large.
const PARALLEL_COPIES: usize = 32;
/// A file above this size is copied alone, since it passes through memory.
const LARGE_FILE_SIZE_BYTES: u64 = 16 << 20;

/// A file to be copied to the same path below another root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedFile {
    pub path: String,
    /// As whatever names the file says.
    pub size_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    pub files: u64,
    pub size_bytes: u64,
    /// Files that were there already.
    pub present: u64,
}

/// Copies files whose names nobody else can give. With `is_resumed` those that are there are not read again; where
/// `is_same_store`, the store is asked to copy by itself. `CorruptFile` for one that is missing, or has another size.
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

/// The size of the file, or `None` if it was there.
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
            Err(Error::corrupt(&*path, format!("it has {found} bytes, and {expected} are expected")))
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
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::tests::memory;

    fn file(path: &str, size_bytes: Option<u64>) -> CopiedFile {
        CopiedFile { path: path.into(), size_bytes }
    }

    #[tokio::test]
    async fn files_are_copied_once_and_compared_with_their_sizes() {
        let (source, target) = (memory(), memory());
        for (path, text) in [("a", "1"), ("b/c", "22"), ("d", "333")] {
            source.put_if_absent(path, Bytes::from(text)).await.unwrap();
        }
        let files = vec![file("a", Some(1)), file("b/c", None), file("d", Some(3))];
        let copied = copy_files(source.as_ref(), target.as_ref(), files.clone(), false, false).await.unwrap();
        assert_eq!(copied, Copied { files: 3, size_bytes: 6, present: 0 });
        assert_eq!(target.get("b/c").await.unwrap(), "22");
        let again = copy_files(source.as_ref(), target.as_ref(), files, true, false).await.unwrap();
        assert_eq!(again, Copied { files: 0, size_bytes: 0, present: 3 });
        for wrong in [file("a", Some(2)), file("nowhere", None)] {
            let copied = copy_files(source.as_ref(), memory().as_ref(), vec![wrong], false, false).await;
            assert!(matches!(copied, Err(Error::CorruptFile { .. })), "{copied:?}");
        }
    }
}
