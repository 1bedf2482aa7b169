# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT: _ClassVar[IsolationLevel]
    SERIALIZABLE: _ClassVar[IsolationLevel]

class TableType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MANAGED: _ClassVar[TableType]
    EXTERNAL: _ClassVar[TableType]
    FEDERATED: _ClassVar[TableType]

class TableFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ICEBERG: _ClassVar[TableFormat]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOOLEAN: _ClassVar[DataType]
    INT2: _ClassVar[DataType]
    INT4: _ClassVar[DataType]
    INT8: _ClassVar[DataType]
    DECIMAL: _ClassVar[DataType]
    FLOAT4: _ClassVar[DataType]
    FLOAT8: _ClassVar[DataType]
    CHAR: _ClassVar[DataType]
    VARCHAR: _ClassVar[DataType]
    DATE: _ClassVar[DataType]
    TIME: _ClassVar[DataType]
    TIMETZ: _ClassVar[DataType]
    TIMESTAMP: _ClassVar[DataType]
    TIMESTAMPTZ: _ClassVar[DataType]
    FIXED: _ClassVar[DataType]
    BINARY: _ClassVar[DataType]
    STRUCT: _ClassVar[DataType]
    MAP: _ClassVar[DataType]
    LIST: _ClassVar[DataType]

class DistributedTransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPEN: _ClassVar[DistributedTransactionState]
    RECORD: _ClassVar[DistributedTransactionState]
    ROLLED_BACK: _ClassVar[DistributedTransactionState]
SNAPSHOT: IsolationLevel
SERIALIZABLE: IsolationLevel
MANAGED: TableType
EXTERNAL: TableType
FEDERATED: TableType
ICEBERG: TableFormat
BOOLEAN: DataType
INT2: DataType
INT4: DataType
INT8: DataType
DECIMAL: DataType
FLOAT4: DataType
FLOAT8: DataType
CHAR: DataType
VARCHAR: DataType
DATE: DataType
TIME: DataType
TIMETZ: DataType
TIMESTAMP: DataType
TIMESTAMPTZ: DataType
FIXED: DataType
BINARY: DataType
STRUCT: DataType
MAP: DataType
LIST: DataType
OPEN: DistributedTransactionState
RECORD: DistributedTransactionState
ROLLED_BACK: DistributedTransactionState

class LakehouseDef(_message.Message):
    __slots__ = ("name", "major_version", "order", "namespace_name_max_size_bytes", "table_name_max_size_bytes", "file_path_max_size_bytes", "node_file_max_size_bytes", "properties", "maximum_version_age_millis", "minimum_versions_to_keep", "maximum_version_age_millis_overrides", "exported_snapshots", "view_name_max_size_bytes", "txn_ttl_millis", "default_isolation", "root_uri", "former_root_uris")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MaximumVersionAgeMillisOverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class ExportedSnapshotsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAJOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_PATH_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NODE_FILE_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_VERSION_AGE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_VERSIONS_TO_KEEP_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_VERSION_AGE_MILLIS_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    VIEW_NAME_MAX_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TXN_TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_ISOLATION_FIELD_NUMBER: _ClassVar[int]
    ROOT_URI_FIELD_NUMBER: _ClassVar[int]
    FORMER_ROOT_URIS_FIELD_NUMBER: _ClassVar[int]
    name: str
    major_version: int
    order: int
    namespace_name_max_size_bytes: int
    table_name_max_size_bytes: int
    file_path_max_size_bytes: int
    node_file_max_size_bytes: int
    properties: _containers.ScalarMap[str, str]
    maximum_version_age_millis: int
    minimum_versions_to_keep: int
    maximum_version_age_millis_overrides: _containers.ScalarMap[int, int]
    exported_snapshots: _containers.ScalarMap[str, str]
    view_name_max_size_bytes: int
    txn_ttl_millis: int
    default_isolation: IsolationLevel
    root_uri: str
    former_root_uris: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., major_version: _Optional[int] = ..., order: _Optional[int] = ..., namespace_name_max_size_bytes: _Optional[int] = ..., table_name_max_size_bytes: _Optional[int] = ..., file_path_max_size_bytes: _Optional[int] = ..., node_file_max_size_bytes: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., maximum_version_age_millis: _Optional[int] = ..., minimum_versions_to_keep: _Optional[int] = ..., maximum_version_age_millis_overrides: _Optional[_Mapping[int, int]] = ..., exported_snapshots: _Optional[_Mapping[str, str]] = ..., view_name_max_size_bytes: _Optional[int] = ..., txn_ttl_millis: _Optional[int] = ..., default_isolation: _Optional[_Union[IsolationLevel, str]] = ..., root_uri: _Optional[str] = ..., former_root_uris: _Optional[_Iterable[str]] = ...) -> None: ...

class NamespaceDef(_message.Message):
    __slots__ = ("id", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TableDef(_message.Message):
    __slots__ = ("id", "schema", "distribution_keys", "primary_keys", "sort_keys", "unique_columns", "table_type", "table_format", "format_properties", "properties")
    class FormatPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_KEYS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEYS_FIELD_NUMBER: _ClassVar[int]
    SORT_KEYS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TABLE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    schema: Schema
    distribution_keys: _containers.RepeatedScalarFieldContainer[str]
    primary_keys: _containers.RepeatedScalarFieldContainer[str]
    sort_keys: _containers.RepeatedCompositeFieldContainer[SortKey]
    unique_columns: _containers.RepeatedScalarFieldContainer[str]
    table_type: TableType
    table_format: TableFormat
    format_properties: _containers.ScalarMap[str, str]
    properties: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., distribution_keys: _Optional[_Iterable[str]] = ..., primary_keys: _Optional[_Iterable[str]] = ..., sort_keys: _Optional[_Iterable[_Union[SortKey, _Mapping]]] = ..., unique_columns: _Optional[_Iterable[str]] = ..., table_type: _Optional[_Union[TableType, str]] = ..., table_format: _Optional[_Union[TableFormat, str]] = ..., format_properties: _Optional[_Mapping[str, str]] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SortKey(_message.Message):
    __slots__ = ("column", "descending", "nulls_last")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    NULLS_LAST_FIELD_NUMBER: _ClassVar[int]
    column: str
    descending: bool
    nulls_last: bool
    def __init__(self, column: _Optional[str] = ..., descending: bool = ..., nulls_last: bool = ...) -> None: ...

class Schema(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("id", "name", "type", "nullable", "properties", "struct_fields", "map_key", "map_value", "list_element", "length", "precision", "scale")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    STRUCT_FIELDS_FIELD_NUMBER: _ClassVar[int]
    MAP_KEY_FIELD_NUMBER: _ClassVar[int]
    MAP_VALUE_FIELD_NUMBER: _ClassVar[int]
    LIST_ELEMENT_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    type: DataType
    nullable: bool
    properties: _containers.ScalarMap[str, str]
    struct_fields: _containers.RepeatedCompositeFieldContainer[Column]
    map_key: Column
    map_value: Column
    list_element: Column
    length: int
    precision: int
    scale: int
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., type: _Optional[_Union[DataType, str]] = ..., nullable: bool = ..., properties: _Optional[_Mapping[str, str]] = ..., struct_fields: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., map_key: _Optional[_Union[Column, _Mapping]] = ..., map_value: _Optional[_Union[Column, _Mapping]] = ..., list_element: _Optional[_Union[Column, _Mapping]] = ..., length: _Optional[int] = ..., precision: _Optional[int] = ..., scale: _Optional[int] = ...) -> None: ...

class ViewDef(_message.Message):
    __slots__ = ("id", "schema", "representations", "default_namespace", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REPRESENTATIONS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    id: str
    schema: Schema
    representations: _containers.RepeatedCompositeFieldContainer[SQLRepresentation]
    default_namespace: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., schema: _Optional[_Union[Schema, _Mapping]] = ..., representations: _Optional[_Iterable[_Union[SQLRepresentation, _Mapping]]] = ..., default_namespace: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SQLRepresentation(_message.Message):
    __slots__ = ("dialect", "sql")
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    dialect: str
    sql: str
    def __init__(self, dialect: _Optional[str] = ..., sql: _Optional[str] = ...) -> None: ...

class DistributedTransactionDef(_message.Message):
    __slots__ = ("id", "isolation", "beginning_root", "running_root", "began_at_millis", "expire_at_millis", "footprint", "commit_message", "checks", "author", "properties", "state", "attachment", "files_since_millis")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    BEGINNING_ROOT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ROOT_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    FILES_SINCE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    id: str
    isolation: IsolationLevel
    beginning_root: str
    running_root: str
    began_at_millis: int
    expire_at_millis: int
    footprint: bytes
    commit_message: str
    checks: _containers.RepeatedScalarFieldContainer[str]
    author: str
    properties: _containers.ScalarMap[str, str]
    state: DistributedTransactionState
    attachment: bytes
    files_since_millis: int
    def __init__(self, id: _Optional[str] = ..., isolation: _Optional[_Union[IsolationLevel, str]] = ..., beginning_root: _Optional[str] = ..., running_root: _Optional[str] = ..., began_at_millis: _Optional[int] = ..., expire_at_millis: _Optional[int] = ..., footprint: _Optional[bytes] = ..., commit_message: _Optional[str] = ..., checks: _Optional[_Iterable[str]] = ..., author: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., state: _Optional[_Union[DistributedTransactionState, str]] = ..., attachment: _Optional[bytes] = ..., files_since_millis: _Optional[int] = ...) -> None: ...

class Footprint(_message.Message):
    __slots__ = ("base_version", "validated_version", "keys_read", "ranges_read", "keys_required", "keys_required_absent", "ranges_required_empty", "writes", "lakehouse_definition", "keys_watched", "ranges_watched")
    class Range(_message.Message):
        __slots__ = ("start", "end")
        START_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        start: str
        end: str
        def __init__(self, start: _Optional[str] = ..., end: _Optional[str] = ...) -> None: ...
    class Write(_message.Message):
        __slots__ = ("key", "base", "location", "is_own_definition", "checked_version", "renamed_from")
        KEY_FIELD_NUMBER: _ClassVar[int]
        BASE_FIELD_NUMBER: _ClassVar[int]
        LOCATION_FIELD_NUMBER: _ClassVar[int]
        IS_OWN_DEFINITION_FIELD_NUMBER: _ClassVar[int]
        CHECKED_VERSION_FIELD_NUMBER: _ClassVar[int]
        RENAMED_FROM_FIELD_NUMBER: _ClassVar[int]
        key: str
        base: str
        location: str
        is_own_definition: bool
        checked_version: int
        renamed_from: str
        def __init__(self, key: _Optional[str] = ..., base: _Optional[str] = ..., location: _Optional[str] = ..., is_own_definition: bool = ..., checked_version: _Optional[int] = ..., renamed_from: _Optional[str] = ...) -> None: ...
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    VALIDATED_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_READ_FIELD_NUMBER: _ClassVar[int]
    RANGES_READ_FIELD_NUMBER: _ClassVar[int]
    KEYS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    KEYS_REQUIRED_ABSENT_FIELD_NUMBER: _ClassVar[int]
    RANGES_REQUIRED_EMPTY_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    LAKEHOUSE_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    KEYS_WATCHED_FIELD_NUMBER: _ClassVar[int]
    RANGES_WATCHED_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    validated_version: int
    keys_read: _containers.RepeatedScalarFieldContainer[str]
    ranges_read: _containers.RepeatedCompositeFieldContainer[Footprint.Range]
    keys_required: _containers.RepeatedScalarFieldContainer[str]
    keys_required_absent: _containers.RepeatedScalarFieldContainer[str]
    ranges_required_empty: _containers.RepeatedCompositeFieldContainer[Footprint.Range]
    writes: _containers.RepeatedCompositeFieldContainer[Footprint.Write]
    lakehouse_definition: str
    keys_watched: _containers.RepeatedScalarFieldContainer[str]
    ranges_watched: _containers.RepeatedCompositeFieldContainer[Footprint.Range]
    def __init__(self, base_version: _Optional[int] = ..., validated_version: _Optional[int] = ..., keys_read: _Optional[_Iterable[str]] = ..., ranges_read: _Optional[_Iterable[_Union[Footprint.Range, _Mapping]]] = ..., keys_required: _Optional[_Iterable[str]] = ..., keys_required_absent: _Optional[_Iterable[str]] = ..., ranges_required_empty: _Optional[_Iterable[_Union[Footprint.Range, _Mapping]]] = ..., writes: _Optional[_Iterable[_Union[Footprint.Write, _Mapping]]] = ..., lakehouse_definition: _Optional[str] = ..., keys_watched: _Optional[_Iterable[str]] = ..., ranges_watched: _Optional[_Iterable[_Union[Footprint.Range, _Mapping]]] = ...) -> None: ...

class CommitIntent(_message.Message):
    __slots__ = ("transactions", "rows")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[IntendedTransaction]
    rows: bytes
    def __init__(self, transactions: _Optional[_Iterable[_Union[IntendedTransaction, _Mapping]]] = ..., rows: _Optional[bytes] = ...) -> None: ...

class IntendedTransaction(_message.Message):
    __slots__ = ("id", "isolation", "commit_message", "author", "properties", "footprint", "last_version", "summary", "companions")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINT_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    COMPANIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    isolation: IsolationLevel
    commit_message: str
    author: str
    properties: _containers.ScalarMap[str, str]
    footprint: Footprint
    last_version: int
    summary: str
    companions: _containers.RepeatedCompositeFieldContainer[IntendedTransaction]
    def __init__(self, id: _Optional[str] = ..., isolation: _Optional[_Union[IsolationLevel, str]] = ..., commit_message: _Optional[str] = ..., author: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., footprint: _Optional[_Union[Footprint, _Mapping]] = ..., last_version: _Optional[int] = ..., summary: _Optional[str] = ..., companions: _Optional[_Iterable[_Union[IntendedTransaction, _Mapping]]] = ...) -> None: ...
