use super::*;
use crate::counting::{Counters, CountingStorage};
use crate::tests::memory;
use futures::future::join_all;
use trinitylake_base::error::Error;

const MANIFEST: &str = "n/t/metadata/5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01-m0.avro";
const TABLE_METADATA: &str = "n/t/metadata/00007-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.metadata.json";
const ROWS: &str = "n/t/data/00000-0-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.parquet";

const DEFINITION: &str = "0000/0000/0000/00000000-table-t-n-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.binpb";

fn cached() -> (Arc<CountingStorage>, CachingStorage) {
    let counting = Arc::new(CountingStorage::new(memory()));
    (counting.clone(), CachingStorage::new(counting))
}

fn reads(counters: Counters) -> u64 {
    counters.get + counters.get_range + counters.head
}

#[test]
fn only_files_with_unique_names_are_cached() {
    // Names without a random id are not cached. For instance, a Hadoop table that is dropped and created again has a
    // different file `v3.metadata.json`.
    for path in [
        "n/t/metadata/v3.metadata.json",
        "n/t/metadata/00003.metadata.json",
        "n/t/5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01/v1.metadata.json",
        "n/t/data/part-0.parquet",
        "n/t/metadata/5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b0-m0.avro",
        "n/t/metadata/5f6bbd802e6d4bd58a471f5a3f6d9b01-m0.avro",
        "_lakehouse_def_5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.binpb",
        "_txn/5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01/1.binpb",
        "0000/0000/0000/00000000-node-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.arrow",
        "n/t/5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01",
    ] {
        assert_eq!(kind(path), None, "{path}");
    }
    for path in [TABLE_METADATA, "n/t/metadata/00003-5F6BBD80-2E6D-4BD5-8A47-1F5A3F6D9B01.gz.metadata.json"] {
        assert_eq!(kind(path), Some(Kind::Metadata), "{path}");
    }
    for path in [MANIFEST, "n/t/metadata/snap-77-0-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01.avro"] {
        assert_eq!(kind(path), Some(Kind::Metadata), "{path}");
    }
    assert_eq!(kind(DEFINITION), Some(Kind::Metadata));
    assert_eq!(kind(ROWS), Some(Kind::Data));
}

#[tokio::test]
async fn a_file_that_was_read_or_written_is_cached() {
    let (counting, storage) = cached();
    storage.put_if_absent(MANIFEST, Bytes::from_static(b"0123456789")).await.unwrap();
    assert_eq!(storage.get(MANIFEST).await.unwrap(), "0123456789");
    assert_eq!(storage.get_range(MANIFEST, 2..4).await.unwrap(), "23");
    storage.get_range(MANIFEST, 11..12).await.unwrap_err();
    assert_eq!(reads(counting.counters()), 0);

    counting.put_if_absent(ROWS, Bytes::from_static(b"rows")).await.unwrap();
    let end = storage.get_end(ROWS, 100).await.unwrap();
    assert_eq!((end.bytes.as_ref(), end.size_bytes), (&b"rows"[..], 4));
    assert_eq!(storage.get_end(ROWS, 3).await.unwrap(), FileEnd { bytes: "ows".into(), size_bytes: 4 });
    assert_eq!(storage.get(ROWS).await.unwrap(), "rows");
    assert_eq!(reads(counting.counters()), 1);
}

#[tokio::test]
async fn the_end_of_a_file_is_not_cached_as_the_file() {
    let (counting, storage) = cached();
    counting.put_if_absent(ROWS, Bytes::from_static(b"0123456789")).await.unwrap();
    assert_eq!(storage.get_end(ROWS, 3).await.unwrap(), FileEnd { bytes: "789".into(), size_bytes: 10 });
    assert_eq!(storage.get(ROWS).await.unwrap(), "0123456789");
}

#[tokio::test]
async fn concurrent_reads_of_a_file_send_one_request() {
    let (counting, storage) = cached();
    counting.put_if_absent(MANIFEST, Bytes::from_static(b"entries")).await.unwrap();
    let all = join_all((0..20).map(|_| storage.get(MANIFEST))).await;
    assert!(all.into_iter().all(|bytes| bytes.unwrap() == "entries"));
    assert_eq!(reads(counting.counters()), 1);
}

#[tokio::test]
async fn a_failed_read_is_not_cached() {
    let (counting, storage) = cached();
    for _ in 0..2 {
        assert!(matches!(storage.get(MANIFEST).await, Err(Error::FileNotFound { .. })));
    }
    counting.put_if_absent(MANIFEST, Bytes::from_static(b"entries")).await.unwrap();
    assert_eq!(storage.get(MANIFEST).await.unwrap(), "entries");
}

#[tokio::test]
async fn a_deleted_file_is_removed_from_the_cache() {
    let (counting, storage) = cached();
    storage.put_if_absent(MANIFEST, Bytes::from_static(b"old")).await.unwrap();
    storage.delete(MANIFEST).await.unwrap();
    assert!(matches!(storage.get(MANIFEST).await, Err(Error::FileNotFound { .. })));
    storage.put_if_absent(MANIFEST, Bytes::from_static(b"new")).await.unwrap();
    // A lost creation does not change the cached file.
    assert_eq!(storage.put_if_absent(MANIFEST, Bytes::new()).await.unwrap(), PutOutcome::AlreadyExists);
    assert_eq!(storage.get(MANIFEST).await.unwrap(), "new");
    assert_eq!(reads(counting.counters()), 1);
}

#[tokio::test]
async fn files_with_reusable_names_are_not_cached() {
    let (counting, storage) = cached();
    let path = "n/t/metadata/v3.metadata.json";
    storage.put_if_absent(path, Bytes::from_static(b"one")).await.unwrap();
    assert_eq!(storage.get(path).await.unwrap(), "one");
    counting.delete(path).await.unwrap();
    counting.put_if_absent(path, Bytes::from_static(b"two")).await.unwrap();
    assert_eq!(storage.get(path).await.unwrap(), "two");
    assert_eq!(storage.get_range(path, 0..1).await.unwrap(), "t");
}

/// The size of the cache is limited. Otherwise ten thousand metadata files of 50 KB would take half a gigabyte of
/// memory.
#[tokio::test]
async fn memory_is_bounded_for_any_reads() {
    let (_, storage) = cached();
    let bytes = Bytes::from(vec![7; 50_000]);
    for i in 0..2_000u32 {
        for kind in ["avro", "parquet"] {
            let path = format!("n/t/{i:08x}-2e6d-4bd5-8a47-1f5a3f6d9b01.{kind}");
            storage.put_if_absent(&path, bytes.clone()).await.unwrap();
        }
        // A file that is read all the time stays cached.
        storage.put_if_absent(MANIFEST, Bytes::from_static(b"entries")).await.unwrap();
        storage.get(MANIFEST).await.unwrap();
    }
    assert!(storage.size_bytes() <= METADATA_SIZE_BYTES + DATA_SIZE_BYTES, "{}", storage.size_bytes());
    assert!(storage.size_bytes() > (METADATA_SIZE_BYTES + DATA_SIZE_BYTES) / 2, "{}", storage.size_bytes());
    assert!(storage.cached(MANIFEST).is_some());

    let (_, storage) = cached();
    let large = Bytes::from(vec![7; METADATA_FILE_MAX_SIZE_BYTES + 1]);
    storage.put_if_absent(MANIFEST, large.clone()).await.unwrap();
    assert_eq!(storage.get(MANIFEST).await.unwrap(), large);
    assert_eq!(storage.size_bytes(), 0);
}

#[tokio::test]
async fn a_forked_child_has_an_empty_cache() {
    let (_, storage) = cached();
    storage.put_if_absent(MANIFEST, Bytes::from_static(b"entries")).await.unwrap();
    assert!(storage.cached(MANIFEST).is_some());
    assert!(storage.caches.of_child(u32::MAX).metadata.get(MANIFEST).is_none());
}
