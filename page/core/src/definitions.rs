//! Converts definitions of objects (format §6) for the page.

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};
use trinitylake_base::error::{Error, Result};
use trinitylake_format::definition_file::decode_file;
use trinitylake_format::file_names::root_version;
use trinitylake_format::key::ObjectKind;
use trinitylake_format::lakehouse_definition::LakehouseDefinition;
use trinitylake_format::lakehouse_definition::proto::{
    Column, DataType, NamespaceDef, Schema, TableDef, TableType, ViewDef,
};

use crate::question::Lakehouse;

impl Lakehouse {
    pub fn of(definition: &LakehouseDefinition) -> Lakehouse {
        // Fields are written one by one, without sorting where possible: sort functions make the WebAssembly file
        // large.
        let mut snapshots = serde_json::Map::new();
        for (name, path) in definition.exported_snapshots() {
            if let Some(version) = root_version(path) {
                snapshots.insert(name.clone(), version.into());
            }
        }
        let mut roots: Vec<String> = definition.root_uri().map(str::to_string).into_iter().collect();
        roots.extend(definition.former_root_uris().iter().cloned());
        roots.sort_unstable_by_key(|root| std::cmp::Reverse(root.len()));
        Lakehouse { name: definition.name().to_string(), properties: definition.properties().clone(), snapshots, roots }
    }
}

fn decoded<T: Message + Default>(message: Bytes, path: &str) -> Result<T> {
    T::decode(message).map_err(|error| Error::corrupt(path, format!("not a definition: {error}")))
}

/// The definition of an object in the file at `path`.
pub fn of(kind: ObjectKind, path: &str, file: &Bytes) -> Result<Value> {
    let message = decode_file(path, file)?;
    match kind {
        ObjectKind::Namespace => namespace(message, path),
        ObjectKind::Table => table(message, path),
        ObjectKind::View => view(message, path),
        ObjectKind::TransactionRecord => Err(Error::InvalidArgument("no object is a transaction".to_string())),
    }
}

fn namespace(message: Bytes, path: &str) -> Result<Value> {
    let found: NamespaceDef = decoded(message, path)?;
    Ok(json!({ "properties": found.properties }))
}

fn table(message: Bytes, path: &str) -> Result<Value> {
    let found: TableDef = decoded(message, path)?;
    let kind = match found.table_type() {
        TableType::Managed => "managed",
        TableType::External => "external",
        TableType::Federated => "federated",
    };
    Ok(json!({
        "id": found.id,
        "type": kind,
        "columns": columns(found.schema.as_ref()),
        "format": found.format_properties,
        "properties": found.properties,
    }))
}

fn view(message: Bytes, path: &str) -> Result<Value> {
    let found: ViewDef = decoded(message, path)?;
    let queries: Vec<Value> =
        found.representations.iter().map(|one| json!({ "dialect": one.dialect, "sql": one.sql })).collect();
    let namespace: Vec<&str> = found.default_namespace.split('.').filter(|level| !level.is_empty()).collect();
    Ok(json!({
        "id": found.id,
        "columns": columns(found.schema.as_ref()),
        "queries": queries,
        "namespace": namespace,
        "properties": found.properties,
    }))
}

fn columns(schema: Option<&Schema>) -> Vec<Value> {
    let shown = |column: &Column| {
        json!({
            "name": column.name,
            "type": type_of(column),
            "required": !column.nullable,
            "comment": column.properties.get("comment").cloned().unwrap_or_default(),
            "is-key": false,
        })
    };
    schema.map(|schema| schema.columns.iter().map(shown).collect()).unwrap_or_default()
}

/// The SQL type of a column.
fn type_of(column: &Column) -> String {
    let inner = |one: &Option<Box<Column>>| one.as_deref().map(type_of).unwrap_or_default();
    let with_length = |word: &str| match column.length {
        0 => word.to_string(),
        length => format!("{word}({length})"),
    };
    let Ok(data_type) = DataType::try_from(column.r#type) else { return "unknown".to_string() };
    let word = match data_type {
        DataType::Boolean => "boolean",
        DataType::Int2 => "smallint",
        DataType::Int4 => "int",
        DataType::Int8 => "bigint",
        DataType::Decimal => return format!("decimal({},{})", column.precision, column.scale),
        DataType::Float4 => "real",
        DataType::Float8 => "double",
        DataType::Char => return with_length("char"),
        DataType::Varchar => return with_length("varchar"),
        DataType::Date => "date",
        DataType::Time => "time",
        DataType::Timetz => "timetz",
        DataType::Timestamp => "timestamp",
        DataType::Timestamptz => "timestamptz",
        DataType::Fixed => return with_length("fixed"),
        DataType::Binary => return with_length("binary"),
        DataType::Struct => {
            let fields: Vec<String> =
                column.struct_fields.iter().map(|one| format!("{} {}", one.name, type_of(one))).collect();
            return format!("struct<{}>", fields.join(", "));
        }
        DataType::Map => return format!("map<{}, {}>", inner(&column.map_key), inner(&column.map_value)),
        DataType::List => return format!("array<{}>", inner(&column.list_element)),
    };
    word.to_string()
}
