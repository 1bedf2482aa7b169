//! Whether a file has the columns that are asked for, and where.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use parquet::arrow::{
    FieldLevels, PARQUET_FIELD_ID_META_KEY, ProjectionMask, parquet_to_arrow_field_levels,
    parquet_to_arrow_schema,
};
use parquet::basic::Type as PhysicalType;
use parquet::schema::types::SchemaDescriptor;

/// How Arrow names a type that is more than what it is stored as.
const EXTENSION: &str = "ARROW:extension:name";

/// Columns of a file that are to be read.
pub struct Columns {
    pub levels: FieldLevels,
    /// Their places among the leaves of the file, in the order of the file.
    pub leaves: Vec<usize>,
    /// Which of `leaves` each column is that was asked for.
    pub order: Vec<usize>,
}

/// Names and types, without what else is said of them.
pub fn target(asked: &Schema) -> SchemaRef {
    let plain = |field: &FieldRef| field.as_ref().clone().with_metadata(HashMap::new());
    Arc::new(Schema::new(asked.fields().iter().map(plain).collect::<Vec<_>>()))
}

/// Where a file has these columns, by id and type, under whatever names and in whatever order; None if it lacks one, or
/// has it with another type.
///
/// No column of the file has parts.
///
/// Times of 96 bits say no zone, and are left to others. Whether rows have the widths of offsets that were asked for, and
/// a value where one must be, is seen when they are a batch.
pub fn find(file: &SchemaDescriptor, asked: &Schema) -> Option<Columns> {
    // What the file itself says, without what Arrow wrote into it beside.
    let stored = parquet_to_arrow_schema(file, None).ok()?;
    let mut hint: Vec<FieldRef> = stored.fields().to_vec();
    let mut leaves = Vec::with_capacity(asked.fields().len());
    for field in asked.fields() {
        let id = id_of(field)?;
        let mut places = stored.fields().iter().enumerate().filter(|(_, there)| id_of(there) == Some(id));
        let (place, there) = places.next()?;
        if places.next().is_some()
            || field.metadata().contains_key(EXTENSION)
            || !is_same(there.data_type(), field.data_type())
        {
            return None;
        }
        hint[place] = Arc::new(there.as_ref().clone().with_data_type(field.data_type().clone()));
        // Columns have no parts, so there are as many leaves.
        let leaf = file.columns().get(place)?;
        if leaf.physical_type() == PhysicalType::INT96 || leaf.max_rep_level() > 0 {
            return None;
        }
        leaves.push(place);
    }
    let mut sorted = leaves.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let order = leaves.iter().map(|leaf| sorted.binary_search(leaf).ok()).collect::<Option<Vec<_>>>()?;
    if sorted.is_empty() || sorted.len() != order.len() {
        return None;
    }
    let mask = ProjectionMask::leaves(file, sorted.iter().copied());
    let levels = parquet_to_arrow_field_levels(file, mask, Some(&Fields::from(hint))).ok()?;
    Some(Columns { levels, leaves: sorted, order })
}

fn id_of(field: &Field) -> Option<&str> {
    field.metadata().get(PARQUET_FIELD_ID_META_KEY).map(String::as_str)
}

/// Types of the same values: Arrow has two widths of offsets for texts and bytes.
fn is_same(stored: &DataType, asked: &DataType) -> bool {
    match (stored, asked) {
        (DataType::Utf8, DataType::LargeUtf8) | (DataType::Binary, DataType::LargeBinary) => true,
        _ => stored == asked && !stored.is_nested(),
    }
}
