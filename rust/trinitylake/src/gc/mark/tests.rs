use super::*;

/// The mark reads a manifest even if it was found first as a data file, because a manifest may list any file as data.
/// Otherwise the collection would delete the data files that the unread manifest lists.
#[test]
fn a_manifest_that_is_also_listed_as_data_is_read() {
    for layers in [false, true] {
        let mut marks = Marks::in_layers(0);
        let mut waiting = Vec::new();
        marks.take(Found::Path("t/m.avro".into()), &mut waiting);
        marks.take(Found::Deletes("t/m.avro".into()), &mut waiting);
        assert!(waiting.is_empty());
        if layers {
            marks.next_layer();
        }
        for _ in 0..2 {
            let form = FileForm::Iceberg(Form::Manifest);
            marks.take(Found::Item(Item::File("t/m.avro".into(), form)), &mut waiting);
        }
        assert_eq!(waiting.len(), 1, "the manifest is read once");
        assert!(marks.contains("t/m.avro"));
    }
}
