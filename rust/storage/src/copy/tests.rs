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
