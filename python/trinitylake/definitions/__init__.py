"""Definitions of lakehouses, namespaces, tables and views: how users declare them, how files store them (format §6).

`types.py` and `sql_type.py` are the schemas that people write, `schema.py` and `arrow_schema.py` turn them into
Iceberg, Arrow and protobuf and back, `files.py` builds, reads and writes the files themselves.
`trinitylake_pb2.py` is generated (`scripts/generate_definitions.py`).

Importing this package imports neither PyIceberg nor pyarrow.
"""

from trinitylake.definitions.files import (
    MAJOR_VERSION,
    MAX_SIZE_BYTES,
    METADATA_LOCATION,
    PARSERS,
    PREVIOUS_METADATA_LOCATION,
    new_id,
    new_namespace_def,
    new_table_def,
    new_view_def,
    parse_distributed_transaction_def,
    parse_lakehouse_def,
    parse_namespace_def,
    parse_table_def,
    parse_view_def,
    serialize,
)
from trinitylake.definitions.schema import (
    SchemaLike,
    arrow_schema,
    as_schema,
    from_iceberg,
    from_proto,
    to_iceberg,
    to_iceberg_schema,
    to_proto,
)
from trinitylake.definitions.sql_type import parse_type
from trinitylake.definitions.trinitylake_pb2 import (
    EXTERNAL,
    FEDERATED,
    ICEBERG,
    MANAGED,
    DistributedTransactionDef,
    LakehouseDef,
    NamespaceDef,
    SortKey,
    SQLRepresentation,
    TableDef,
    ViewDef,
)
from trinitylake.definitions.types import Column, Schema, Type, list_of, map_of, struct_of

__all__ = [
    "EXTERNAL",
    "FEDERATED",
    "ICEBERG",
    "MAJOR_VERSION",
    "MANAGED",
    "MAX_SIZE_BYTES",
    "METADATA_LOCATION",
    "PARSERS",
    "PREVIOUS_METADATA_LOCATION",
    "Column",
    "DistributedTransactionDef",
    "LakehouseDef",
    "NamespaceDef",
    "SQLRepresentation",
    "Schema",
    "SchemaLike",
    "SortKey",
    "TableDef",
    "Type",
    "ViewDef",
    "arrow_schema",
    "as_schema",
    "from_iceberg",
    "from_proto",
    "list_of",
    "map_of",
    "new_id",
    "new_namespace_def",
    "new_table_def",
    "new_view_def",
    "parse_distributed_transaction_def",
    "parse_lakehouse_def",
    "parse_namespace_def",
    "parse_table_def",
    "parse_type",
    "parse_view_def",
    "serialize",
    "struct_of",
    "to_iceberg",
    "to_iceberg_schema",
    "to_proto",
]
