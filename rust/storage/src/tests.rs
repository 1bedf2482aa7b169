//! The contract of [`Storage`], checked for every implementation.

mod fake_s3;

use std::collections::HashSet;

use futures::future::join_all;

use bytes::Bytes;
use trinitylake_base::error::Error;

use super::*;
pub(crate) use fake_s3::{FakeServer, Response};

/// One empty store of each kind, with the values that keep it alive.
struct Stores {
    stores: Vec<(&'static str, Arc<dyn Storage>)>,
    _folder: tempfile::TempDir,
    _server: FakeServer,
}

/// A new, empty in-memory store.
pub(crate) fn memory() -> Arc<dyn Storage> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("memory://test-{}/lake", NEXT.fetch_add(1, Ordering::Relaxed));
    open(&RootUri::parse(&name).unwrap(), &HashMap::new(), Durability::None).unwrap()
}

pub(crate) fn local(folder: &std::path::Path, durability: Durability) -> Arc<dyn Storage> {
    let root = RootUri::parse(folder.to_str().unwrap()).unwrap();
    open(&root, &HashMap::new(), durability).unwrap()
}

/// A client of the server, with few and short retries.
pub(crate) fn s3(server: &FakeServer, root: &str, more: &[(&str, &str)]) -> Arc<dyn Storage> {
    let mut options: HashMap<String, String> = [
        ("endpoint", server.endpoint.as_str()),
        ("access_key_id", "AKIATEST"),
        ("secret_access_key", "not-a-secret"),
        ("region", "us-east-1"),
        ("max_retries", "2"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    options.extend(more.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    open(&RootUri::parse(root).unwrap(), &options, Durability::Fsync).unwrap()
}

impl Stores {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = FakeServer::s3();
        let stores = vec![
            ("memory", memory()),
            ("local, synced", local(&folder.path().join("a/synced"), Durability::Fsync)),
            ("local", local(&folder.path().join("b"), Durability::None)),
            ("s3", s3(&server, "s3://bucket/some/lake", &[])),
            ("s3 without a prefix", s3(&FakeServer::s3(), "s3://bucket", &[])),
        ];
        Self { stores, _folder: folder, _server: server }
    }
}

async fn paths(storage: &dyn Storage, prefix: &str) -> Vec<String> {
    storage.list(prefix).await.unwrap().into_iter().map(|file| file.path).collect()
}

async fn create(storage: &dyn Storage, path: &str) {
    let outcome = storage.put_if_absent(path, Bytes::from(path.to_owned())).await;
    assert_eq!(outcome.unwrap(), PutOutcome::Created, "{path}");
}

#[tokio::test]
async fn a_file_is_created_once_and_keeps_its_first_content() {
    for (name, storage) in Stores::new().stores {
        let put = |text: &'static str| storage.put_if_absent("a/b/file", Bytes::from_static(text.as_bytes()));
        assert_eq!(put("first").await.unwrap(), PutOutcome::Created, "{name}");
        assert_eq!(put("second").await.unwrap(), PutOutcome::AlreadyExists, "{name}");
        assert_eq!(storage.get("a/b/file").await.unwrap(), "first", "{name}");
        storage.delete("a/b/file").await.unwrap();
        assert_eq!(put("third").await.unwrap(), PutOutcome::Created, "{name}");
        assert_eq!(storage.get("a/b/file").await.unwrap(), "third", "{name}");
    }
}

#[tokio::test]
async fn a_hint_is_replaced() {
    for (name, storage) in Stores::new().stores {
        for text in ["1", "22", "3"] {
            storage.put_hint("_latest_hint.txt", Bytes::from_static(text.as_bytes())).await.unwrap();
            assert_eq!(storage.get("_latest_hint.txt").await.unwrap(), text, "{name}");
        }
        assert_eq!(paths(&*storage, "").await, ["_latest_hint.txt"], "{name}");
    }
}

#[tokio::test]
async fn a_missing_file_is_not_found() {
    for (name, storage) in Stores::new().stores {
        create(&*storage, "folder/file").await;
        for path in ["absent", "folder", "folder/absent", "absent/absent", "folder/file/below"] {
            let missing = |error: Error| {
                assert!(matches!(&error, Error::FileNotFound { path: named } if named == path), "{name} {error:?}")
            };
            missing(storage.get(path).await.unwrap_err());
            missing(storage.get_range(path, 0..1).await.unwrap_err());
            missing(storage.get_range(path, 0..0).await.unwrap_err());
            missing(storage.head(path).await.unwrap_err());
            assert!(!storage.exists(path).await.unwrap(), "{name} {path}");
            storage.delete(path).await.unwrap();
        }
        assert!(storage.exists("folder/file").await.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn ranges_are_cut_to_the_file() {
    for (name, storage) in Stores::new().stores {
        storage.put_if_absent("file", Bytes::from_static(b"0123456789")).await.unwrap();
        storage.put_if_absent("empty", Bytes::new()).await.unwrap();
        for (range, expected) in
            [(0..10, "0123456789"), (3..5, "34"), (8..100, "89"), (10..12, ""), (4..4, ""), (10..10, "")]
        {
            let bytes = storage.get_range("file", range.clone()).await.unwrap();
            assert_eq!(bytes, expected, "{name} {range:?}");
        }
        assert_eq!(storage.get_range("empty", 0..5).await.unwrap(), "", "{name}");
        assert_eq!(storage.get("empty").await.unwrap(), "", "{name}");
        #[allow(clippy::reversed_empty_ranges, reason = "the fault under test")]
        for range in [11..12, 11..11, 5..4] {
            let error = storage.get_range("file", range.clone()).await.unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{name} {range:?} {error:?}");
        }
    }
}

#[tokio::test]
async fn the_end_of_a_file_is_returned_with_its_size() {
    for (name, storage) in Stores::new().stores {
        storage.put_if_absent("file", Bytes::from_static(b"0123456789")).await.unwrap();
        storage.put_if_absent("empty", Bytes::new()).await.unwrap();
        for (max_size_bytes, expected) in [(3, "789"), (10, "0123456789"), (11, "0123456789")] {
            let end = storage.get_end("file", max_size_bytes).await.unwrap();
            assert_eq!((end.bytes.as_ref(), end.size_bytes), (expected.as_bytes(), 10), "{name}");
        }
        let end = storage.get_end("empty", 5).await.unwrap();
        assert_eq!((end.bytes.len(), end.size_bytes), (0, 0), "{name}");
        let error = storage.get_end("absent", 5).await.unwrap_err();
        assert!(matches!(error, Error::FileNotFound { .. }), "{name} {error:?}");
    }
}

#[tokio::test]
async fn head_returns_size_and_time() {
    for (name, storage) in Stores::new().stores {
        create(&*storage, "a/file").await;
        let info = storage.head("a/file").await.unwrap();
        assert_eq!((info.path.as_str(), info.size_bytes), ("a/file", 6), "{name}");
        // The time is between 2020 and 2100, in milliseconds since 1970.
        assert!((1_577_836_800_000..4_102_444_800_000).contains(&info.modified_millis), "{name} {info:?}");
        assert_eq!(storage.list("").await.unwrap(), [info], "{name}");
    }
}

#[tokio::test]
async fn lists_are_recursive_below_folders_and_flat_for_names() {
    for (name, storage) in Stores::new().stores {
        assert_eq!(storage.list("").await.unwrap(), [], "{name}");
        let files = ["_0100", "_01000", "_1000", "_expired/00", "_expired/01", "_expired/x/y", "_0folder/f", "a/b/c"];
        for path in files {
            create(&*storage, path).await;
        }
        let mut all = files.map(str::to_owned);
        all.sort();
        assert_eq!(paths(&*storage, "").await, all, "{name}");
        for (prefix, expected) in [
            ("_0", vec!["_0100", "_01000"]),
            ("_0100", vec!["_0100", "_01000"]),
            ("_", vec!["_0100", "_01000", "_1000"]),
            ("_expired/", vec!["_expired/00", "_expired/01", "_expired/x/y"]),
            ("_expired/0", vec!["_expired/00", "_expired/01"]),
            ("_expired", vec![]),
            ("_exp/", vec![]),
            ("a", vec![]),
            ("a/", vec!["a/b/c"]),
            ("a/b/", vec!["a/b/c"]),
            ("a/b/c", vec!["a/b/c"]),
            ("a/b/c/", vec![]),
            ("none/", vec![]),
            ("none", vec![]),
            ("none/0", vec![]),
        ] {
            assert_eq!(paths(&*storage, prefix).await, expected, "{name} {prefix}");
        }
    }
}

/// Stores return a thousand files per page of a listing, so 1,200 files take more than one step.
#[tokio::test]
async fn a_walk_visits_each_file_of_a_folder_once() {
    let stores = Stores::new();
    for (name, storage) in stores.stores.iter().filter(|(name, _)| *name != "local, synced") {
        // Names that sort just before and after the slash.
        for path in ["f/a/1", "f/a/2", "f/a-b/1", "f/a.b", "f/a0/1", "f/b", "g/1", "e"] {
            create(storage.as_ref(), path).await;
        }
        for number in 0..1200 {
            create(storage.as_ref(), &format!("f/c/{number:04}")).await;
        }
        let walk = async |after: Option<&str>| {
            let mut places = vec![Place { folder: "f/".into(), after: after.map(str::to_string) }];
            let (mut found, mut steps) = (Vec::new(), 0);
            while let Some(place) = places.pop() {
                let step = storage.walk(&place).await.unwrap();
                found.extend(step.files);
                places.extend(step.places);
                steps += 1;
            }
            found.sort_by(|left, right| left.path.cmp(&right.path));
            (found, steps)
        };
        let all = storage.list("f/").await.unwrap();
        let (found, steps) = walk(None).await;
        assert_eq!(found, all, "{name}");
        assert!(steps > 1, "{name}");
        if !name.starts_with("local") {
            let later: Vec<_> = all.into_iter().filter(|file| file.path.as_str() > "f/a0").collect();
            assert_eq!(walk(Some("f/a0")).await.0, later, "{name}");
        }
        let none = Place { folder: "none/".into(), after: None };
        assert_eq!(storage.walk(&none).await.unwrap(), Step::default(), "{name}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn special_characters_are_literal() {
    let names = [
        "a b",
        "ü",
        "u\u{308}",
        "日本語",
        "a%20b",
        "%2e%2e",
        "%2F",
        "100%",
        "a\\b",
        "a#b",
        "#",
        "a#1b",
        "a?b",
        "[x]",
        "a:b",
        "~",
        "'\"",
        "&<>",
        "a+b",
        "..a",
        "a..",
        "...",
        "-",
        "*",
        "{y}",
        "^|`",
        "=",
        "a;b,c",
        "\u{202e}x",
        "@",
    ];
    for (store, storage) in Stores::new().stores {
        let mut all: Vec<String> =
            names.iter().flat_map(|name| [format!("{name}/{name}"), format!("f{name}")]).collect();
        all.sort();
        for path in &all {
            create(&*storage, path).await;
        }
        for path in &all {
            assert_eq!(storage.get(path).await.unwrap(), *path, "{store}");
            assert!(storage.exists(path).await.unwrap(), "{store} {path}");
        }
        assert_eq!(paths(&*storage, "").await, all, "{store}");
        for name in names {
            assert_eq!(paths(&*storage, &format!("{name}/")).await, [format!("{name}/{name}")], "{store}");
        }
        for path in &all {
            storage.delete(path).await.unwrap();
        }
        assert_eq!(storage.list("").await.unwrap(), [], "{store}");
    }
}

#[tokio::test]
async fn every_verb_refuses_invalid_paths() {
    for (name, storage) in Stores::new().stores {
        for path in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "../x", "a\0b", "a\nb", "a\u{7f}"] {
            let refused =
                |error: Error| assert!(matches!(error, Error::InvalidLocation(_)), "{name} {path:?} {error:?}");
            refused(storage.get(path).await.unwrap_err());
            refused(storage.get_range(path, 0..1).await.unwrap_err());
            refused(storage.get_range(path, 0..0).await.unwrap_err());
            refused(storage.head(path).await.unwrap_err());
            refused(storage.exists(path).await.unwrap_err());
            refused(storage.put_if_absent(path, Bytes::new()).await.unwrap_err());
            refused(storage.put_hint(path, Bytes::new()).await.unwrap_err());
            refused(storage.delete(path).await.unwrap_err());
        }
        for prefix in ["/", "/a", "a//", "../", "a/../b", "./x"] {
            let error = storage.list(prefix).await.unwrap_err();
            assert!(matches!(error, Error::InvalidLocation(_)), "{name} {prefix:?} {error:?}");
        }
    }
}

/// If 64 writers create the same file at the same time, in each of several rounds, exactly one of them wins, and the
/// file has its content (failure mode 5).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_64_concurrent_writers_wins() {
    let stores = Stores::new();
    for (name, storage) in &stores.stores {
        let rounds = if name.starts_with("local,") || name.starts_with("s3") { 20 } else { 200 };
        for round in 0..rounds {
            let path = format!("{}/race-{round}", round % 7);
            let writers = (0..64).map(|writer| {
                let (storage, path) = (storage.clone(), path.clone());
                tokio::spawn(async move {
                    storage.put_if_absent(&path, Bytes::from(format!("writer {writer}"))).await.unwrap()
                })
            });
            let outcomes: Vec<_> = join_all(writers).await.into_iter().map(Result::unwrap).collect();
            let winners: Vec<_> = (0..64).filter(|&writer: &usize| outcomes[writer] == PutOutcome::Created).collect();
            assert_eq!(winners.len(), 1, "{name}, round {round}");
            assert_eq!(storage.get(&path).await.unwrap(), format!("writer {}", winners[0]), "{name}");
        }
        let left: HashSet<String> = paths(&**storage, "").await.into_iter().collect();
        assert_eq!(left.len(), rounds, "{name}");
    }
}

#[tokio::test]
async fn neighbouring_lakehouses_are_isolated() {
    let folder = tempfile::tempdir().unwrap();
    let server = FakeServer::s3();
    let open_memory = |uri: &str| open(&RootUri::parse(uri).unwrap(), &HashMap::new(), Durability::None).unwrap();
    for (left, right, parent) in [
        (
            s3(&server, "s3://bucket/lake", &[]),
            s3(&server, "s3://bucket/lake2/", &[]),
            s3(&server, "s3://bucket/", &[]),
        ),
        (open_memory("memory://shared/lake"), open_memory("memory://shared/lake2"), open_memory("memory://shared")),
        (
            local(&folder.path().join("lake"), Durability::None),
            local(&folder.path().join("lake2"), Durability::None),
            local(folder.path(), Durability::None),
        ),
    ] {
        create(&*left, "file").await;
        assert_eq!(right.list("").await.unwrap(), []);
        assert_eq!(right.list("f").await.unwrap(), []);
        assert!(!right.exists("file").await.unwrap());
        create(&*right, "file").await;
        assert_eq!(paths(&*left, "").await, ["file"]);
        assert_eq!(paths(&*parent, "").await, ["lake/file", "lake2/file"]);
    }
}

#[tokio::test]
async fn handles_of_one_memory_share_their_files() {
    let handle = |uri: &str| open(&RootUri::parse(uri).unwrap(), &HashMap::new(), Durability::Fsync).unwrap();
    create(&*handle("memory://one"), "file").await;
    assert_eq!(handle("memory://one/").get("file").await.unwrap(), "file");
    assert!(!handle("memory://two").exists("file").await.unwrap());
}

#[test]
fn durability_is_parsed_from_two_names() {
    assert_eq!("fsync".parse::<Durability>().unwrap(), Durability::default());
    assert_eq!("none".parse::<Durability>().unwrap(), Durability::None);
    assert!(matches!("full".parse::<Durability>(), Err(Error::InvalidArgument(_))));
}
