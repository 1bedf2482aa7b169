"""Definitions of lakehouses, namespaces, tables and views: schemas, types and definition files (format §6).

`sql_types.py` (grammar in `sql_type_grammar.py`) and `schema.py` contain the classes for users;
`schema.py`, `iceberg_types.py` and `arrow_types.py` convert columns; `files.py` builds, reads and writes
definition files.
`trinitylake_pb2.py` is generated (`scripts/generate_definitions.py`).

Importing this package imports neither PyIceberg nor pyarrow.
"""

from trinitylake.definitions.files import (
    MAJOR_VERSION,
    MANIFEST_LIST,
    MAX_SIZE_BYTES,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    SHARED_FOLDERS,
    new_id,
    new_namespace_def,
    new_table_def,
    new_view_def,
    object_id,
    parse_definition,
    parse_distributed_transaction_def,
    parse_given_definition,
    parse_lakehouse_def,
    parse_namespace_def,
    parse_table_def,
    parse_view_def,
    read_definition,
    serialize,
)
from trinitylake.definitions.schema import Schema, SchemaLike, as_schema, to_iceberg_schema
from trinitylake.definitions.sql_types import Column, Type, list_of, map_of, parse_type, struct_of
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
