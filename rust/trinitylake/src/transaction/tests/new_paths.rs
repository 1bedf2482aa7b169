//! Paths of new nodes and definitions are the optimized form of their original paths (format §3).

use std::sync::Arc;

use crate::environment::testing::TestEnvironment;
use crate::file_names::{definition_id, node_id};
use crate::key::ObjectKind::Namespace;
use crate::optimized_path::optimize;
use crate::root_uri::RootUri;
use crate::storage::{Durability, LocalStorage, Storage};
use crate::tests::fixture::{MemoryFiles, begin, commit, create, text};
use crate::transaction::Isolation;

#[tokio::test(flavor = "multi_thread")]
async fn new_files_have_the_prefix_of_their_hash_on_every_storage() {
    let folder = tempfile::tempdir().unwrap();
    let root = RootUri::parse(folder.path().to_str().unwrap()).unwrap();
    let local: Arc<dyn Storage> = Arc::new(LocalStorage::new(&root, Durability::None));
    for storage in [local, MemoryFiles::shared()] {
        let lakehouse = create(storage.clone(), &TestEnvironment::seeded(1)).await;
        for first in (0..1200).step_by(40) {
            let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
            for number in first..first + 40 {
                let name = format!("n{number:04}");
                transaction.create(Namespace, &name, "", text("definition")).await.unwrap();
            }
            commit(&mut transaction).await.unwrap();
        }
        let files = storage.list("").await.unwrap();
        let spread = files.iter().map(|file| file.path.as_str());
        let spread: Vec<&str> =
            spread.filter(|path| definition_id(path).is_some() || node_id(path).is_some()).collect();
        assert!(spread.len() > 1200 && spread.iter().any(|path| node_id(path).is_some()));
        for path in spread {
            assert_eq!(path, optimize(&path["0000/0000/0000/00000000-".len()..]));
        }
    }
}
