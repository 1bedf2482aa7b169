//! Where new files go: on a disk into one folder for a while, elsewhere where their hash leads (docs/decisions/0062).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::fixture::{MemoryFiles, add_namespace, assert_whole, begin, commit, create, open, text};
use crate::key::ObjectKind::Namespace;
use crate::path::{FOLDER_SIZE_BYTES, definition_id, node_id, optimize};
use crate::root_uri::RootUri;
use crate::storage::{CountingStorage, Durability, KeepingStorage, LocalStorage, RetryingStorage, Storage};
use crate::transaction::Isolation;

/// Files of definitions and of nodes, by folder.
async fn spread_files(storage: &dyn Storage) -> BTreeMap<String, Vec<String>> {
    let mut folders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in storage.list("").await.unwrap() {
        if definition_id(&file.path).is_some() || node_id(&file.path).is_some() {
            folders.entry(file.path[..FOLDER_SIZE_BYTES].to_owned()).or_default().push(file.path);
        }
    }
    folders
}

/// One in four commits of a young lakehouse on a disk made a folder, which takes as long as the file in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_handle_on_a_disk_fills_one_folder_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let root = RootUri::parse(folder.path().to_str().unwrap()).unwrap();
    let environment = TestEnvironment::seeded(1);
    // As a handle of Python has it.
    let storage = Arc::new(CountingStorage::new(Arc::new(LocalStorage::new(&root, Durability::None))));
    let storage = Arc::new(KeepingStorage::new(storage));
    let storage: Arc<dyn Storage> = Arc::new(RetryingStorage::new(storage, environment.clone()));
    let lakehouse = create(storage.clone(), &environment).await;
    for first in (0..1200).step_by(40) {
        let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
        for number in first..first + 40 {
            transaction.create(Namespace, &format!("n{number:04}"), "", text("definition")).await.unwrap();
        }
        commit(&mut transaction).await.unwrap();
    }
    let folders = spread_files(&*storage).await;
    let counts: Vec<usize> = folders.values().map(Vec::len).collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.contains(&1000) && counts.iter().sum::<usize>() > 1200, "{counts:?}");
    assert!(folders.values().flatten().any(|path| node_id(path).is_some()), "a node was made");
    // Who comes later reads all of it, and begins where a hash leads.
    let other: Arc<dyn Storage> = Arc::new(LocalStorage::new(&root, Durability::None));
    let other = open(other, &environment).await;
    assert_whole(&other.latest().await.unwrap()).await;
    add_namespace(&other, "later").await.unwrap();
    let found = other.latest().await.unwrap().locate(Namespace, "later", "").await.unwrap().unwrap();
    assert!(!folders.contains_key(&found[..FOLDER_SIZE_BYTES]), "{found}");
}

/// Object stores spread load by the first characters of a key.
#[tokio::test]
async fn files_go_where_their_hash_leads_where_there_are_no_folders() {
    let files = MemoryFiles::shared();
    let lakehouse = create(files.clone(), &TestEnvironment::seeded(1)).await;
    for number in 0..40 {
        add_namespace(&lakehouse, &format!("n{number:02}")).await.unwrap();
    }
    let folders = spread_files(&*files).await;
    assert!(folders.len() > 30, "{}", folders.len());
    for path in folders.into_values().flatten() {
        let name = &path["0000/0000/0000/00000000-".len()..];
        assert_eq!(path, optimize(name));
    }
}
