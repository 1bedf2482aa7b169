//! The functions of `optimized_path` and `key` on Arrow columns, for millions of rows. Each row is converted
//! separately; nulls stay null.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};

use crate::key::{NameSizes, ObjectKind};
use crate::object_name::{check_name, check_namespace};
use crate::optimized_path::{OPTIMIZED_PREFIX_SIZE_BYTES, write_optimized};
use trinitylake_base::error::{Error, Result};

/// Returns the [optimized path](crate::optimized_path::optimize) of each path.
pub fn optimize_paths(paths: &StringArray) -> Result<StringArray> {
    let (texts, text_offsets) = (paths.value_data(), paths.value_offsets());
    let text = |i: usize| &texts[text_offsets[i] as usize..text_offsets[i + 1] as usize];
    let end = |i: usize| (text_offsets[i] - text_offsets[0]) as usize + i * OPTIMIZED_PREFIX_SIZE_BYTES;
    column(paths.len(), paths.nulls().cloned(), end, |output| {
        let mut rest = output;
        for i in (0..paths.len()).filter(|i| paths.is_valid(*i)) {
            let path = text(i);
            let (optimized, others) = std::mem::take(&mut rest).split_at_mut(OPTIMIZED_PREFIX_SIZE_BYTES + path.len());
            write_optimized(path, optimized);
            rest = others;
        }
        Ok(())
    })
}

/// Returns the [`NameSizes::key`] of each row. `names` is not used for keys of namespaces.
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
    let prefix = kind.prefix().as_bytes();
    let namespace_end = prefix.len() + sizes.namespace;
    let nulls = match names {
        Some(names) if names.null_count() > 0 => NullBuffer::union(namespaces.nulls(), names.nulls()),
        _ => namespaces.nulls().cloned(),
    };
    let is_valid = |i: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(i));
    column(
        namespaces.len(),
        nulls.clone(),
        |i| i * key_size,
        |output| {
            // Key prefix of the previous row's namespace, because most neighbouring rows have the same namespace.
            let mut row = vec![b' '; key_size];
            row[..prefix.len()].copy_from_slice(prefix);
            let mut row_namespace = None;
            for (i, key) in (0..namespaces.len()).filter(|i| is_valid(*i)).zip(output.chunks_exact_mut(key_size)) {
                let namespace = namespaces.value(i);
                if row_namespace != Some(namespace) {
                    check_namespace(namespace, sizes.namespace)?;
                    row[prefix.len()..namespace_end].fill(b' ');
                    row[prefix.len()..prefix.len() + namespace.len()].copy_from_slice(namespace.as_bytes());
                    row_namespace = Some(namespace);
                }
                key.copy_from_slice(&row);
                if let Some((names, size)) = second {
                    let name = names.value(i);
                    check_name(kind.word(), name, size)?;
                    key[namespace_end..namespace_end + name.len()].copy_from_slice(name.as_bytes());
                }
            }
            Ok(())
        },
    )
}

/// Returns kind, namespace and name of each key. The inverse of [`encode_keys`].
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
        let (kind, namespace, name) = sizes
            .decode_parts(key)
            .ok_or_else(|| Error::InvalidName(format!("{:?} is not a key of this lakehouse", key.trim_end())))?;
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

/// Builds a column. `write` writes the bytes of all rows. `end(i)` is the total size of the rows before row i if none
/// of them is null; a null row takes no bytes.
fn column(
    rows: usize,
    nulls: Option<NullBuffer>,
    end: impl Fn(usize) -> usize,
    write: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<StringArray> {
    let (offsets, size): (Vec<i32>, usize) = match nulls.as_ref().filter(|nulls| nulls.null_count() > 0) {
        // Offsets that do not fit into `i32` are refused below.
        None => ((0..=rows).map(|i| end(i) as i32).collect(), end(rows)),
        Some(nulls) => {
            let mut size = 0;
            let mut offsets = Vec::with_capacity(rows + 1);
            offsets.push(0);
            offsets.extend(nulls.iter().enumerate().map(|(i, is_valid)| {
                size += if is_valid { end(i + 1) - end(i) } else { 0 };
                size as i32
            }));
            (offsets, size)
        }
    };
    if i32::try_from(size).is_err() {
        let message = "more than 2 GiB of text in one column: split it into batches";
        return Err(Error::InvalidArgument(message.into()));
    }
    let mut output = vec![0; size];
    write(&mut output)?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    StringArray::try_new(offsets, Buffer::from_vec(output), nulls)
        .map_err(|error| Error::InvalidArgument(error.to_string()))
}

#[cfg(test)]
mod tests;
