//! Checks and repairs of a small lakehouse in memory with damaged files. `tests/test_fsck.py` damages each type of
//! file, and tests Iceberg tables as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::repair::{Repair, repair};
use super::{Finding, Fsck, Kind, Scope};
use crate::definition_file::encode_file;
use crate::environment::testing::TestEnvironment;
use crate::file_names::root_path;
use crate::key::ObjectKind::Namespace;
use crate::lakehouse::Lakehouse;
use crate::storage::Storage;
use crate::tests::fixture::{MemoryFiles, add_namespace, assert_whole, begin, commit, contents, create, open};
use crate::transaction::{Isolation, Note};

/// Encodes a namespace definition with this id.
fn definition(number: u32) -> Bytes {
    use prost::Message as _;
    let id = uuid::Uuid::from_u128(u128::from(number) << 70 | 1).to_string();
    let properties = [("number".to_string(), number.to_string())].into();
    Bytes::from(crate::lakehouse_definition::proto::NamespaceDef { id, properties }.encode_to_vec())
}

async fn add(lakehouse: &Arc<Lakehouse>, number: u32) {
    let mut transaction = begin(lakehouse, Isolation::Snapshot).await;
    transaction.create(Namespace, &format!("n{number:02}"), "", definition(number)).await.unwrap();
    commit(&mut transaction).await.unwrap();
}

async fn lake(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>) -> Arc<Lakehouse> {
    let lakehouse = create(files.clone(), environment).await;
    for number in 0..30 {
        add(&lakehouse, number).await;
    }
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.replace(Namespace, "n07", "", definition(77)).await.unwrap();
    transaction.drop_object(Namespace, "n11", "").await.unwrap();
    commit(&mut transaction).await.unwrap();
    lakehouse
}

async fn check(files: &Arc<MemoryFiles>, scope: Scope) -> Vec<Finding> {
    let mut fsck = Fsck::begin(files.clone(), scope, false).await.unwrap();
    let mut findings = Vec::new();
    while let Some(step) = fsck.next().await.unwrap() {
        findings.extend(step.findings);
    }
    findings.retain(|finding| finding.kind != Kind::Unreferenced);
    findings
}

async fn mend(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>) -> Repair {
    repair(files.clone(), environment.clone(), false, Note::default()).await.unwrap()
}

async fn latest(files: &Arc<MemoryFiles>, environment: &Arc<TestEnvironment>) -> (u64, BTreeMap<String, String>) {
    let version = open(files.clone(), environment).await.latest().await.unwrap();
    assert_whole(&version).await;
    (version.number, contents(&version).await)
}

#[tokio::test]
async fn an_intact_lakehouse_has_no_findings() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    lake(&files, &environment).await;
    assert_eq!(check(&files, Scope::All).await, []);
    assert_eq!(mend(&files, &environment).await, Repair::default());
}

/// The repair restores the rows of any lost node of the newest tree exactly, including later changes.
#[tokio::test]
async fn a_lost_node_is_restored_exactly() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let shape = lake(&files, &environment).await.latest().await.unwrap().shape().await.unwrap();
    let (newest, whole) = latest(&files, &environment).await;
    let mut mended = 0;
    for node in &shape.nodes[1..] {
        let files = MemoryFiles::shared();
        lake(&files, &TestEnvironment::seeded(1)).await;
        files.delete(&node.path).await.unwrap();
        let found = check(&files, Scope::Latest).await;
        assert_eq!((found[0].kind, &found[0].path, &found[0].versions), (Kind::Missing, &node.path, &vec![newest]));
        let done = mend(&files, &environment).await;
        if done.lost.is_empty() {
            mended += 1;
            assert_eq!(latest(&files, &environment).await, (newest + 1, whole.clone()));
            assert_eq!(check(&files, Scope::Latest).await, []);
        }
        assert_eq!(mend(&files, &environment).await.version, None);
    }
    assert!(mended > 3, "{mended} of {}", shape.nodes.len());
}

#[tokio::test]
async fn lost_versions_are_replaced_by_versions_of_the_repair() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = lake(&files, &environment).await;
    let newest = lakehouse.latest().await.unwrap().number;
    let before = contents(&lakehouse.version(newest - 2).await.unwrap()).await;
    for number in [newest - 1, newest] {
        files.delete(&root_path(number)).await.unwrap();
    }
    assert_eq!(check(&files, Scope::Latest).await.len(), 2);
    let done = mend(&files, &environment).await;
    assert_eq!((done.version, done.lost.len()), (Some(newest), 2));
    assert_eq!(latest(&files, &environment).await, (newest, before));
    assert_eq!(check(&files, Scope::All).await, []);
    assert_eq!(mend(&files, &environment).await, Repair::default());
    add_namespace(&open(files.clone(), &environment).await, "goes_on").await.unwrap();
}

#[tokio::test]
async fn a_definition_with_the_checksum_of_another_path_is_damaged() {
    let (files, environment) = (MemoryFiles::shared(), TestEnvironment::seeded(1));
    let lakehouse = lake(&files, &environment).await;
    let path = lakehouse.latest().await.unwrap().locate(Namespace, "n07", "").await.unwrap().unwrap();
    files.delete(&path).await.unwrap();
    files.put_if_absent(&path, encode_file("another path", &definition(78))).await.unwrap();
    let found = check(&files, Scope::Latest).await;
    assert_eq!((found[0].kind, found[0].affected.as_slice()), (Kind::Damaged, &["namespace n07".to_string()][..]));
    let done = mend(&files, &environment).await;
    assert!(done.lost[0].starts_with("namespace n07: has the state of version"), "{done:?}");
    assert_eq!(check(&files, Scope::Latest).await, []);
}
