use super::*;

const METADATA: &str = r#"{
    "format-version": 2, "table-uuid": "01234567-89ab-4def-8123-456789abcdef", "location": "s3://b/lake/ns/t",
    "properties": {"write.data.path": "s3://b/lake/other"},
    "snapshots": [{"snapshot-id": 1, "manifest-list": "s3://b/l1.avro"}, {"manifests": ["s3://b/m1.avro"]}],
    "statistics": [{"statistics-path": "s3://b/s.puffin"}],
    "partition-statistics": [{"statistics-path": "s3://b/p.parquet"}],
    "metadata-log": [{"metadata-file": "s3://b/v1.json"}]
}"#;

#[test]
fn metadata_references_manifests_and_statistics_but_no_older_metadata() {
    let metadata = read(&Bytes::from(METADATA), "m").unwrap();
    assert_eq!(metadata.folders, ["s3://b/lake/ns/t", "s3://b/lake/other"]);
    let named: Vec<(&str, Form)> = metadata.files.iter().map(|file| (file.location.as_str(), file.form)).collect();
    assert_eq!(
        named,
        [
            ("s3://b/l1.avro", Form::ManifestList),
            ("s3://b/m1.avro", Form::Manifest),
            ("s3://b/s.puffin", Form::Content),
            ("s3://b/p.parquet", Form::Content),
        ]
    );
}

#[test]
fn compressed_metadata_is_read_by_its_content() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(METADATA.as_bytes()).unwrap();
    let compressed = Bytes::from(encoder.finish().unwrap());
    assert_eq!(read(&compressed, "m").unwrap(), read(&Bytes::from(METADATA), "m").unwrap());
    assert!(matches!(read(&compressed.slice(..40), "m"), Err(Error::CorruptFile { .. })));
}

/// Metadata that cannot be decoded is an error. Otherwise its references would be skipped, and garbage collection would
/// delete the files.
#[test]
fn unknown_metadata_is_an_error() {
    for text in ["", "{}", r#"{"format-version": 2, "location": "x", "snapshots": [{}]}"#, "[1, 2"] {
        assert!(matches!(read(&Bytes::from(text), "m"), Err(Error::CorruptFile { .. })), "{text}");
    }
    let newer = r#"{"format-version": 4, "location": "x"}"#;
    assert!(matches!(read(&Bytes::from(newer), "m"), Err(Error::UnsupportedVersion(_))));
}
