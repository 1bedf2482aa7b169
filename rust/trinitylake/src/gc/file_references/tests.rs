use super::*;

fn named(location: &str, form: Form) -> Result<Vec<String>> {
    let tables = IcebergTables::new("s3://b/lake", &[]).unwrap();
    let links = tables.files(vec![Named { location: location.to_owned(), form }], "t/manifest.avro")?;
    Ok(links
        .into_iter()
        .map(|link| match link {
            Link::File { path, .. } => path,
            other => panic!("{other:?}"),
        })
        .collect())
}

/// A reference retains its file in every spelling that readers resolve to that file, such as two slashes before the
/// name. Otherwise the next collection would treat the location as external, and delete a file that readers use.
#[test]
fn a_file_referenced_in_another_spelling_is_retained() {
    for (location, path) in [
        ("s3://b/lake/t/data/f", "t/data/f"),
        ("s3a://b/lake/t//data/f", "t/data/f"),
        ("s3://b/lake/t//data/f", "t//data/f"),
        ("s3://b/lake/t/./data/../data/f", "t/data/f"),
        ("s3://b//lake/t/data/f", "t/data/f"),
        ("s3://b/lake/t/data/f?x=1", "t/data/f"),
        ("s3://b/lake/t/data/f?x=1", "t/data/f?x=1"),
        ("s3://b/lake/t/data/f#x", "t/data/f"),
    ] {
        for form in [Form::Content, Form::Deletes] {
            let paths = named(location, form).unwrap();
            assert!(paths.iter().any(|one| one == path), "{location}: {paths:?}");
        }
    }
    assert!(named("s3://b/lake2/t//data/f", Form::Content).unwrap().is_empty());
}

/// A location of a manifest that may be one of several files ends the collection. Otherwise the manifest would not be
/// read, and the files that it lists would be deleted.
#[test]
fn an_ambiguous_location_of_a_manifest_ends_the_collection() {
    let error = named("s3://b/lake/t//m.avro", Form::Manifest).unwrap_err();
    assert!(error.to_string().contains("s3://b/lake/t//m.avro"), "{error}");
    assert_eq!(named("s3://b//lake/t/m.avro", Form::ManifestList).unwrap(), ["t/m.avro"]);
    assert_eq!(named("s3://b/lake/t/m?.avro", Form::Manifest).unwrap(), ["t/m?.avro"]);
}
