use apache_avro::types::Record;
use apache_avro::{Schema, Writer};

use super::*;

const LIST: &str = r#"{"type": "record", "name": "manifest_file", "fields": [
    {"name": "manifest_path", "type": "string"}, {"name": "manifest_length", "type": "long"}]}"#;
const MANIFEST: &str = r#"{"type": "record", "name": "manifest_entry", "fields": [
    {"name": "status", "type": "int"}, {"name": "snapshot_id", "type": ["null", "long"]},
    {"name": "data_file", "type": {"type": "record", "name": "r2", "fields": [
        {"name": "content", "type": "int"}, {"name": "file_path", "type": "string"}]}}]}"#;

fn file(schema: &str, rows: &[&dyn Fn(&mut Record<'_>)]) -> Bytes {
    let schema = Schema::parse_str(schema).unwrap();
    let mut writer = Writer::new(&schema, Vec::new()).unwrap();
    for fill in rows {
        let mut record = Record::new(&schema).unwrap();
        fill(&mut record);
        writer.append_value(record).unwrap();
    }
    writer.into_inner().unwrap().into()
}

fn entry(status: i32, content: i32, path: &str) -> impl Fn(&mut Record<'_>) {
    let path = path.to_string();
    move |record| {
        record.put("status", status);
        record.put("snapshot_id", Value::Union(0, Box::new(Value::Null)));
        let file =
            vec![("content".to_string(), Value::Int(content)), ("file_path".to_string(), Value::String(path.clone()))];
        record.put("data_file", Value::Record(file));
    }
}

#[test]
fn a_manifest_references_all_files_but_removed_ones() {
    let bytes =
        file(MANIFEST, &[&entry(1, 0, "added"), &entry(0, 1, "deletes"), &entry(2, 0, "gone"), &entry(0, 0, "kept")]);
    let named: Vec<(String, Form)> =
        content_files(&bytes, "m").unwrap().into_iter().map(|file| (file.location, file.form)).collect();
    let expected = [("added", Form::Content), ("deletes", Form::Deletes), ("kept", Form::Content)];
    assert_eq!(named, expected.map(|(location, form)| (location.to_string(), form)));
}

#[test]
fn a_manifest_list_references_manifests() {
    let bytes = file(
        LIST,
        &[&|record| {
            record.put("manifest_path", "s3://b/m.avro");
            record.put("manifest_length", 7i64);
        }],
    );
    let named = manifests(&bytes, "l").unwrap();
    assert_eq!(named, [Named { location: "s3://b/m.avro".into(), form: Form::Manifest }]);
}

/// A manifest list that is read as a manifest is an error. Otherwise it would have no references, and garbage
/// collection would delete all files of the table.
#[test]
fn a_file_of_another_kind_or_a_truncated_one_is_an_error() {
    let manifest = file(MANIFEST, &[&entry(1, 0, "added"), &entry(1, 0, "too")]);
    assert!(matches!(manifests(&manifest, "m"), Err(Error::CorruptFile { .. })));
    for end in 0..manifest.len() {
        let cut = manifest.slice(..end);
        let complete = content_files(&cut, "m").is_ok_and(|files| files.len() < 2 && end > 0);
        assert!(!complete || files_end_at_a_block(&manifest, end), "cut at {end}");
    }
}

/// A file that ends after a block, or before the first one, is a valid Avro file.
fn files_end_at_a_block(bytes: &Bytes, end: usize) -> bool {
    let marker = &bytes[bytes.len() - 16..];
    bytes[..end].ends_with(marker)
}
