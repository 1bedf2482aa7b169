//! The functions of `path` and `key` over Arrow columns, for millions of rows. Each row is what the function
//! makes of it alone; nulls stay null.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};

use crate::key::{NameSizes, ObjectKind};
use crate::object_name::{check_name, check_namespace};
use crate::path::optimize_into;
use trinitylake_base::error::{Error, Result};

/// [`crate::path::optimize`] of each path.
pub fn optimize_paths(paths: &StringArray) -> Result<StringArray> {
    let texts = paths.value_data().len();
    column(paths.len(), texts + paths.len() * 24, paths, |i, output| {
        if paths.is_valid(i) {
            optimize_into(paths.value(i), output);
        }
        Ok(())
    })
}

/// [`NameSizes::key`] of each row. `names` is left out for namespaces.
pub fn encode_keys(
    kind: ObjectKind,
    namespaces: &StringArray,
    names: Option<&StringArray>,
    sizes: NameSizes,
) -> Result<StringArray> {
    if names.is_some_and(|names| names.len() != namespaces.len()) {
        return Err(Error::InvalidArgument("namespaces and names differ in length".into()));
    }
    let second = match (kind, names) {
        (ObjectKind::Namespace, None) => None,
        (ObjectKind::Table, Some(names)) => Some((names, sizes.table)),
        (ObjectKind::View, Some(names)) => Some((names, sizes.view)),
        _ => {
            return Err(Error::InvalidArgument(format!("these are not the columns of {} keys", kind.word())));
        }
    };
    let key_size = sizes.key_size_bytes(kind);
    // What was computed for the namespace of the row before: neighbours mostly share it.
    let prefix = kind.prefix().as_bytes();
    let mut row = vec![b' '; key_size];
    row[..prefix.len()].copy_from_slice(prefix);
    let namespace_end = prefix.len() + sizes.namespace;
    let mut row_namespace = None;
    let nulls = match names {
        Some(names) if names.null_count() > 0 => {
            arrow_buffer::NullBuffer::union(namespaces.nulls(), names.nulls())
        }
        _ => namespaces.nulls().cloned(),
    };
    let is_valid = |i: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(i));
    let keys = column(namespaces.len(), namespaces.len() * key_size, namespaces, |i, output| {
        if !is_valid(i) {
            return Ok(());
        }
        let namespace = namespaces.value(i);
        if row_namespace != Some(namespace) {
            check_namespace(namespace, sizes.namespace)?;
            row[prefix.len()..namespace_end].fill(b' ');
            row[prefix.len()..prefix.len() + namespace.len()].copy_from_slice(namespace.as_bytes());
            row_namespace = Some(namespace);
        }
        let start = output.len();
        output.extend_from_slice(&row);
        if let Some((names, size)) = second {
            let name = names.value(i);
            check_name(kind.word(), name, size)?;
            let end = namespace_end + name.len();
            output[start + namespace_end..start + end].copy_from_slice(name.as_bytes());
        }
        Ok(())
    })?;
    let (offsets, values, _) = keys.into_parts();
    StringArray::try_new(offsets, values, nulls).map_err(|error| Error::InvalidArgument(error.to_string()))
}

/// Kind, namespace and name of each key; the inverse of [`encode_keys`].
pub fn decode_keys(keys: &StringArray, sizes: NameSizes) -> Result<RecordBatch> {
    let rows = keys.len();
    let mut kinds = StringBuilder::with_capacity(rows, rows * 6);
    let mut namespaces = StringBuilder::with_capacity(rows, rows * 16);
    let mut names = StringBuilder::with_capacity(rows, rows * 16);
    for key in keys {
        let Some(key) = key else {
            kinds.append_null();
            namespaces.append_null();
            names.append_null();
            continue;
        };
        let (kind, namespace, name) = sizes.decode_parts(key).ok_or_else(|| {
            Error::InvalidName(format!("{:?} is not a key of this lakehouse", key.trim_end()))
        })?;
        kinds.append_value(kind.word());
        namespaces.append_value(namespace);
        names.append_value(name);
    }
    let field = |name: &str| Field::new(name, DataType::Utf8, true);
    let schema = Schema::new(vec![field("kind"), field("namespace"), field("name")]);
    let columns: Vec<ArrayRef> =
        vec![Arc::new(kinds.finish()), Arc::new(namespaces.finish()), Arc::new(names.finish())];
    RecordBatch::try_new(Arc::new(schema), columns).map_err(|error| Error::InvalidArgument(error.to_string()))
}

/// Builds a column from what `write` appends for each row. Nulls are those of `like`.
fn column(
    rows: usize,
    capacity: usize,
    like: &StringArray,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<StringArray> {
    let too_large =
        || Error::InvalidArgument("more than 2 GiB of text in one column: split it into batches".into());
    let mut output = Vec::with_capacity(capacity);
    let mut offsets: Vec<i32> = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for i in 0..rows {
        write(i, &mut output)?;
        offsets.push(i32::try_from(output.len()).map_err(|_| too_large())?);
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    StringArray::try_new(offsets, Buffer::from_vec(output), like.nulls().cloned())
        .map_err(|error| Error::InvalidArgument(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::optimize;

    #[test]
    fn batches_agree_with_single_rows_and_keep_nulls() {
        let paths = StringArray::from(vec![Some("a/b.binpb"), None, Some("ünï/x")]);
        let optimized = optimize_paths(&paths).unwrap();
        assert_eq!(optimized.value(0), optimize("a/b.binpb"));
        assert!(optimized.is_null(1));
        assert_eq!(optimized.value(2), optimize("ünï/x"));

        let sizes = NameSizes { namespace: 12, table: 9, view: 7 };
        let namespaces = StringArray::from(vec![Some("n"), Some("n.m"), None, Some("n")]);
        let names = StringArray::from(vec![Some("t"), None, Some("u"), Some("größe")]);
        let keys = encode_keys(ObjectKind::Table, &namespaces, Some(&names), sizes).unwrap();
        assert_eq!(keys.value(0), sizes.table_key("n", "t").unwrap());
        assert!(keys.is_null(1) && keys.is_null(2));
        assert_eq!(keys.value(3), sizes.table_key("n", "größe").unwrap());

        let decoded = decode_keys(&keys, sizes).unwrap();
        let name: &StringArray = decoded.column(2).as_any().downcast_ref().unwrap();
        assert_eq!(name.value(3), "größe");
        assert!(name.is_null(1));
    }

    #[test]
    fn one_bad_name_is_named() {
        let namespaces = StringArray::from(vec!["n", "n"]);
        let names = StringArray::from(vec!["ok", "not ok "]);
        let error =
            encode_keys(ObjectKind::Table, &namespaces, Some(&names), NameSizes::default()).unwrap_err();
        assert!(error.to_string().contains("not ok"), "{error}");
    }
}
