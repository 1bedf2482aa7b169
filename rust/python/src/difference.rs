//! Differences between two versions as an Arrow batch. Records of transaction ids are left out.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{StringBuilder, UInt64Builder};
use pyo3::prelude::*;
use trinitylake::key::{NameSizes, ObjectKind};
use trinitylake::tree::diff::Difference;

use crate::arrow;

/// Returns a batch with one row for each difference. With `transactions`, the first column is the number of the
/// transaction that made the change.
pub fn difference_batch<'py>(
    py: Python<'py>,
    names: NameSizes,
    differences: Vec<Difference>,
    transactions: Option<HashMap<&str, usize>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut columns: [StringBuilder; 5] = Default::default();
    let mut numbers = UInt64Builder::new();
    for difference in differences {
        let Some((kind, namespace, name)) = names.decode_parts(&difference.key) else { continue };
        if kind == ObjectKind::TransactionRecord {
            continue;
        }
        let texts =
            [Some(kind.word()), Some(namespace), Some(name), difference.before.as_deref(), difference.after.as_deref()];
        for (column, text) in columns.iter_mut().zip(texts) {
            column.append_option(text);
        }
        if let Some(transactions) = &transactions {
            numbers.append_option(transactions.get(difference.key.as_str()).map(|number| *number as u64));
        }
    }
    let names = ["kind", "namespace", "name", "before", "after"];
    let arrays = columns.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
    let mut fields: Vec<(&str, ArrayRef)> = names.into_iter().zip(arrays).collect();
    if transactions.is_some() {
        fields.insert(0, ("transaction", Arc::new(numbers.finish())));
    }
    arrow::batch(py, fields)
}
