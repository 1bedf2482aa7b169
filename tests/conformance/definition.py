"""Field numbers of definition files (format §6), copied from the page instead of the library's schema."""

from __future__ import annotations

from typing import Any

from conformance.wire import Field, Message, parse

TYPES = (
    *("BOOLEAN", "INT2", "INT4", "INT8", "DECIMAL", "FLOAT4", "FLOAT8", "CHAR", "VARCHAR", "DATE", "TIME", "TIMETZ"),
    *("TIMESTAMP", "TIMESTAMPTZ", "FIXED", "BINARY", "STRUCT", "MAP", "LIST"),
)
TABLE_TYPES = ("MANAGED", "EXTERNAL", "FEDERATED")

LAKEHOUSE: Message = {
    1: Field("name", "text"),
    2: Field("major_version", "number"),
    3: Field("order", "number"),
    4: Field("namespace_name_max_size_bytes", "number"),
    5: Field("table_name_max_size_bytes", "number"),
    6: Field("file_path_max_size_bytes", "number"),
    7: Field("node_file_max_size_bytes", "number"),
    8: Field("properties", "text", map_value="text"),
    9: Field("maximum_version_age_millis", "number"),
    10: Field("minimum_versions_to_keep", "number"),
    11: Field("maximum_version_age_millis_overrides", "number", map_value="number"),
    12: Field("exported_snapshots", "text", map_value="text"),
    13: Field("view_name_max_size_bytes", "number"),
    14: Field("txn_ttl_millis", "number"),
    15: Field("default_isolation", "number"),
    16: Field("root_uri", "text"),
    17: Field("former_root_uris", "text", repeated=True),
}

COLUMN: Message = {
    1: Field("id", "number"),
    2: Field("name", "text"),
    3: Field("type", "number"),
    4: Field("nullable", "flag"),
    5: Field("properties", "text", map_value="text"),
    10: Field("length", "number"),
    11: Field("precision", "number"),
    12: Field("scale", "number"),
}
COLUMN[6] = Field("struct_fields", COLUMN, repeated=True)
COLUMN[7] = Field("map_key", COLUMN)
COLUMN[8] = Field("map_value", COLUMN)
COLUMN[9] = Field("list_element", COLUMN)
SCHEMA: Message = {1: Field("columns", COLUMN, repeated=True)}

NAMESPACE: Message = {1: Field("id", "text"), 2: Field("properties", "text", map_value="text")}
TABLE: Message = {
    1: Field("id", "text"),
    2: Field("schema", SCHEMA),
    3: Field("distribution_keys", "text", repeated=True),
    4: Field("primary_keys", "text", repeated=True),
    6: Field("unique_columns", "text", repeated=True),
    8: Field("table_type", "number"),
    9: Field("table_format", "number"),
    10: Field("format_properties", "text", map_value="text"),
    11: Field("properties", "text", map_value="text"),
}
VIEW: Message = {
    1: Field("id", "text"),
    2: Field("schema", SCHEMA),
    3: Field("representations", {1: Field("dialect", "text"), 2: Field("sql", "text")}, repeated=True),
    4: Field("default_namespace", "text"),
    5: Field("properties", "text", map_value="text"),
}
OBJECTS: dict[str, Message] = {"namespace": NAMESPACE, "table": TABLE, "view": VIEW}

#: Settings of a lakehouse whose fields are not set.
DEFAULTS = {
    "order": 128,
    "namespace_name_max_size_bytes": 100,
    "table_name_max_size_bytes": 100,
    "view_name_max_size_bytes": 100,
    "file_path_max_size_bytes": 200,
    "node_file_max_size_bytes": 1048576,
    "maximum_version_age_millis": 7 * 24 * 3600 * 1000,
    "minimum_versions_to_keep": 3,
    "txn_ttl_millis": 24 * 3600 * 1000,
}


def lakehouse_definition(data: bytes) -> dict[str, Any]:
    """A lakehouse definition, with default values for fields that are not set."""
    definition = parse(data, LAKEHOUSE)
    if definition["major_version"] > 0:
        raise ValueError(f"major version {definition['major_version']}")
    return {name: value or DEFAULTS.get(name, value) for name, value in definition.items()}


def object_definition(kind: str, data: bytes) -> dict[str, Any]:
    """The definition of a namespace, a table or a view."""
    return parse(data, OBJECTS[kind])
