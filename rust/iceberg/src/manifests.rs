//! Decodes manifest lists and manifests, which are Avro files.

use apache_avro::Reader;
use apache_avro::types::Value;
use bytes::Bytes;

use super::{Form, Named};
use trinitylake_base::error::{Error, Result};

/// Status of a manifest entry whose file was removed by the snapshot that wrote the manifest.
const DELETED: i32 = 2;
/// Content of a data file, in contrast to a delete file.
const DATA: i32 = 0;

pub(super) fn manifests(bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    records(bytes, path, |row| {
        let location = text(field(row, "manifest_path")).ok_or("an entry has no manifest path")?;
        Ok(Some(Named { location, form: Form::Manifest }))
    })
}

pub(super) fn content_files(bytes: &Bytes, path: &str) -> Result<Vec<Named>> {
    records(bytes, path, |row| {
        if matches!(field(row, "status"), Some(Value::Int(DELETED))) {
            return Ok(None);
        }
        let Some(Value::Record(file)) = field(row, "data_file") else { return Err("an entry has no file") };
        let location = text(field(file, "file_path")).ok_or("an entry has no file path")?;
        Ok(Some(Named { location, form: if is_data(file) { Form::Content } else { Form::Deletes } }))
    })
}

type Row = [(String, Value)];

fn records<T>(bytes: &Bytes, path: &str, read: impl Fn(&Row) -> Result<Option<T>, &'static str>) -> Result<Vec<T>> {
    let damaged = |why: String| Error::corrupt(path, format!("not an Iceberg manifest or manifest list: {why}"));
    let reader = Reader::new(bytes.as_ref()).map_err(|error| damaged(error.to_string()))?;
    let mut found = Vec::new();
    for value in reader {
        match value.map_err(|error| damaged(error.to_string()))? {
            Value::Record(row) => found.extend(read(&row).map_err(|why| damaged(why.into()))?),
            _ => return Err(damaged("an entry is not a record".into())),
        }
    }
    Ok(found)
}

/// Whether a file contains data, not deletes. Format version 1 lacks the field, and has no deletes.
fn is_data(file: &Row) -> bool {
    matches!(field(file, "content"), None | Some(Value::Int(DATA)))
}

/// Returns a field of a record. If the field is a union, returns the value in the union.
fn field<'a>(row: &'a Row, name: &str) -> Option<&'a Value> {
    let (_, value) = row.iter().find(|(field, _)| field == name)?;
    match value {
        Value::Union(_, inner) => Some(inner),
        value => Some(value),
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    match value {
        Some(Value::String(text)) => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
