//! Properties that the core changes by itself: what it copies, and what it leaves to the layer above.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::definition::proto::{TableDef, TableType};
use crate::definition::{METADATA_LOCATION, PREVIOUS_METADATA_LOCATION};
use crate::environment::testing::TestEnvironment;
use crate::error::Error;
use crate::fixture::{MemoryFiles, add_namespace, begin, commit, create};
use crate::key::ObjectKind::Table;
use crate::lakehouse::Lakehouse;
use crate::transaction::Isolation;
use crate::transaction::table_properties::{ChangedProperties, PropertyChange};

const ID: &str = "5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b01";
const METADATA: &str = "a/t/metadata/00007-5f6bbd80-2e6d-4bd5-8a47-1f5a3f6d9b02.metadata.json";

fn definition() -> TableDef {
    TableDef {
        id: ID.into(),
        primary_keys: vec!["id".into()],
        format_properties: [(METADATA_LOCATION.into(), METADATA.into())].into(),
        ..TableDef::default()
    }
}

/// A table of that definition, with metadata.
async fn lake(definition: &[u8]) -> Arc<Lakehouse> {
    let lakehouse = create(MemoryFiles::shared(), &TestEnvironment::seeded(1)).await;
    let root = lakehouse.storage().root().to_owned();
    let metadata = format!(
        r#"{{"snapshots":[],"metadata-log":[],"location":"{root}a/t","table-uuid":"{ID}","last-updated-ms":9,"properties":{{"gc.enabled":"false"}},"format-version":2}}"#
    );
    lakehouse.storage().put_if_absent(METADATA, metadata.into()).await.unwrap();
    add_namespace(&lakehouse, "a").await.unwrap();
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    transaction.create(Table, "a", "t", Bytes::copy_from_slice(definition)).await.unwrap();
    commit(&mut transaction).await.unwrap();
    lakehouse
}

fn change() -> ChangedProperties {
    ChangedProperties {
        changes: vec![PropertyChange::Set(vec![("owner".into(), "ana".into())])],
        table_id: None,
        kept: 20,
        max_size_bytes: 1 << 20,
    }
}

/// Whether the core changes that table, asked like that.
async fn is_for_core(definition: &[u8], change: &ChangedProperties) -> bool {
    let lakehouse = lake(definition).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    let changed = transaction.change_properties("a", "t", change).await.unwrap();
    assert_eq!(transaction.has_writes(), changed.is_some(), "what is left to others is not staged");
    changed.is_some()
}

#[tokio::test]
async fn definition_and_metadata_follow_those_before() {
    let lakehouse = lake(&definition().encode_to_vec()).await;
    let mut transaction = begin(&lakehouse, Isolation::Serializable).await;
    let required = ChangedProperties { table_id: Some(ID.into()), ..change() };
    let changed = transaction.change_properties("a", "t", &required).await.unwrap().unwrap();
    assert_eq!(changed.id, ID);
    assert!(changed.metadata_path.starts_with("a/t/metadata/00008-"), "{}", changed.metadata_path);
    let document: serde_json::Value = serde_json::from_slice(&changed.metadata).unwrap();
    assert_eq!(document["properties"]["owner"], "ana");
    let root = lakehouse.storage().root();
    assert_eq!(document["metadata-log"][0]["metadata-file"], format!("{root}{METADATA}"));

    commit(&mut transaction).await.unwrap();
    let latest = lakehouse.latest().await.unwrap();
    let location = latest.locate(Table, "a", "t").await.unwrap().unwrap();
    let after = TableDef::decode(latest.read_definition(&location).await.unwrap()).unwrap();
    let mut expected = definition();
    expected.format_properties.insert(METADATA_LOCATION.into(), changed.metadata_path.clone());
    expected.format_properties.insert(PREVIOUS_METADATA_LOCATION.into(), METADATA.into());
    assert_eq!(after, expected);
    assert_eq!(transaction.summary().as_str(), "properties a.t");
}

#[tokio::test]
async fn what_takes_more_is_left_to_others() {
    let managed = definition().encode_to_vec();
    assert!(is_for_core(&managed, &change()).await);
    let another = Some("00000000-0000-4000-8000-000000000000".to_owned());
    assert!(!is_for_core(&managed, &ChangedProperties { table_id: another, ..change() }).await);
    assert!(!is_for_core(&managed, &ChangedProperties { changes: Vec::new(), ..change() }).await);
    assert!(!is_for_core(&managed, &ChangedProperties { max_size_bytes: 100, ..change() }).await);

    // A field that a newer writer has added would be lost.
    let newer = [managed.as_slice(), &[0xa2, 0x06, 1, b'x']].concat();
    assert!(TableDef::decode(&*newer).is_ok());
    assert!(!is_for_core(&newer, &change()).await);
    assert!(!is_for_core(b"no definition", &change()).await);

    let external = TableDef { table_type: TableType::External.into(), ..definition() };
    assert!(!is_for_core(&external.encode_to_vec(), &change()).await);
    let without = TableDef { format_properties: [].into(), ..definition() };
    assert!(!is_for_core(&without.encode_to_vec(), &change()).await);
    let lost = METADATA.replace("00007", "00009");
    let lost = TableDef { format_properties: [(METADATA_LOCATION.into(), lost)].into(), ..definition() };
    assert!(!is_for_core(&lost.encode_to_vec(), &change()).await);
}

#[tokio::test]
async fn what_the_transaction_has_changed_itself_is_left_to_others() {
    let lakehouse = lake(&definition().encode_to_vec()).await;
    let mut transaction = begin(&lakehouse, Isolation::Snapshot).await;
    assert_eq!(transaction.change_properties("a", "no", &change()).await.unwrap(), None);
    assert!(transaction.change_properties("a", "t", &change()).await.unwrap().is_some());
    assert_eq!(
        transaction.change_properties("a", "t", &change()).await.unwrap(),
        None,
        "its file is not there yet"
    );
    let error = transaction.change_properties("a..b", "t", &change()).await.unwrap_err();
    assert!(matches!(error, Error::InvalidName(_)), "{error:?}");
}
