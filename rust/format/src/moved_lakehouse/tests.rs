use super::*;
use crate::lakehouse_definition::proto;

fn lying_at(root: &str, former: &[&str]) -> LakehouseDefinition {
    LakehouseDefinition::encode(proto::LakehouseDef {
        root_uri: root.into(),
        former_root_uris: former.iter().map(ToString::to_string).collect(),
        ..Default::default()
    })
}

#[test]
fn spellings_of_an_azure_container_are_the_same_place() {
    let recorded = lying_at("abfss://container@account.dfs.core.windows.net/lake/", &[]);
    assert!(Placement::of("az://container/lake/", &recorded).is_recorded());
    assert!(!Placement::of("az://other/lake/", &recorded).is_recorded());
    let elsewhere = Placement::of("abfss://container@copy.dfs.core.windows.net/lake/", &recorded);
    assert!(!elsewhere.is_recorded(), "another account");
}

#[test]
fn a_relocation_keeps_every_former_root_once() {
    let definition = lying_at("file:///b/", &["file:///a/", "file:///old/"]);
    let placement = Placement::of("file:///a/", &definition);
    let back = placement.relocate(&definition, &["file:///older".into()]).unwrap().unwrap();
    assert_eq!(back.root_uri(), Some("file:///a/"));
    assert_eq!(back.former_root_uris(), ["file:///older/", "file:///old/", "file:///b/"]);
    assert!(Placement::of("file:///a/", &back).relocate(&back, &[]).unwrap().is_none());
}

#[test]
fn a_lakehouse_without_a_recorded_root_is_writable() {
    let definition = LakehouseDefinition::encode(proto::LakehouseDef::default());
    let placement = Placement::of("s3://bucket/lake/", &definition);
    placement.check_writable().unwrap();
    let recorded = placement.relocate(&definition, &[]).unwrap().unwrap();
    assert_eq!(recorded.root_uri(), Some("s3://bucket/lake/"));
}
