use super::*;
use crate::tests::memory;

#[tokio::test]
async fn every_verb_is_counted_once() {
    let storage = CountingStorage::new(memory());
    storage.put_if_absent("file", Bytes::from_static(b"12345")).await.unwrap();
    storage.put_if_absent("file", Bytes::from_static(b"123")).await.unwrap();
    storage.put_hint("hint", Bytes::from_static(b"7")).await.unwrap();
    let before = storage.counters();
    storage.get("file").await.unwrap();
    storage.get("absent").await.unwrap_err();
    storage.get_range("file", 1..3).await.unwrap();
    storage.head("file").await.unwrap();
    storage.exists("file").await.unwrap();
    storage.copy_within("memory://elsewhere/", "file").await.unwrap();
    storage.list("").await.unwrap();
    storage.delete("file").await.unwrap();
    let all = Counters {
        get: 2,
        get_range: 1,
        head: 2,
        put_if_absent: 2,
        put_hint: 1,
        copy: 1,
        list: 1,
        delete: 1,
        read_bytes: 7,
        written_bytes: 9,
    };
    assert_eq!(storage.counters(), all);
    assert_eq!(all.requests(), 11);
    assert_eq!(all.since(&before), Counters { put_if_absent: 0, put_hint: 0, written_bytes: 0, ..all });
    assert_eq!(all.entries().iter().map(|(_, value)| value).sum::<u64>(), 27);
}
