"""Definition files, `*.binpb` (format §6): creation, parsing and serialization.

A definition is a protobuf message of `trinitylake_pb2`. To change a definition, parse it, change the message and write
the message: this keeps fields that this library does not know, which a newly built message would lose.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Literal, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from trinitylake import _core
from trinitylake.definitions import trinitylake_pb2 as proto
from trinitylake.definitions.schema import Schema
from trinitylake.errors import CorruptFile, InvalidArgument, UnsupportedVersion

#: Maximum size of a definition file; a larger file is refused before it is decoded.
MAX_SIZE_BYTES = 16 << 20
#: The highest `LakehouseDef.major_version` that this library reads and writes.
MAJOR_VERSION = 0

_TABLE_TYPES = frozenset(proto.TableType.values())
_TABLE_FORMATS = frozenset(proto.TableFormat.values())

TableType = Literal["managed", "external", "federated"]
Definition = TypeVar("Definition", bound=Message)

#: Keys of `TableDef.format_properties` for the Iceberg format (§9).
METADATA_LOCATION = "metadata_location"
PREVIOUS_METADATA_LOCATION = "previous_metadata_location"
#: Key for a table that is a copy: the folders of the tables with which it shares files, one in each line.
SHARED_FOLDERS = "shared_folders"
MANIFEST_LIST = "manifest_list"


def read_definition(storage: _core.Storage, location: str) -> bytes:
    """Read the definition at a location. Raises `CorruptFile` if the checksum or the path in the file is wrong."""
    return _core.decode_definition_file(location, storage.get(location))


def new_id() -> str:
    """A random UUID, the permanent id of a new object."""
    return str(uuid.uuid4())


def new_namespace_def(id: str | None = None, properties: Mapping[str, str] | None = None) -> proto.NamespaceDef:
    """The definition of a namespace, by default with a new id."""
    return proto.NamespaceDef(id=id or new_id(), properties=_text_properties(properties))


def new_table_def(
    id: str | None = None,
    *,
    table_type: TableType = "managed",
    format_properties: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> proto.TableDef:
    """The definition of an Iceberg table (§9), by default with a new id.

    `format_properties` has `metadata_location`, which is a path below the root for a managed table and a URI for an
    external table. For a federated table it has the properties of the other catalog
    (`iceberg_storage/federated_tables.py`).
    """
    return proto.TableDef(
        id=id or new_id(),
        table_type=table_type.upper(),
        table_format=proto.ICEBERG,
        format_properties=_text_properties(format_properties),
        properties=_text_properties(properties),
    )


def new_view_def(
    representations: Mapping[str, str],
    id: str | None = None,
    *,
    schema: Schema | proto.Schema | None = None,
    default_namespace: str = "",
    properties: Mapping[str, str] | None = None,
) -> proto.ViewDef:
    """The definition of a view: `representations` maps SQL dialects, such as "spark", to queries.

    Raises `InvalidArgument` without any representation, and for an empty query.
    """
    _check_representations(representations.items())
    return proto.ViewDef(
        id=id or new_id(),
        schema=schema.to_definition() if isinstance(schema, Schema) else schema,
        representations=[proto.SQLRepresentation(dialect=dialect, sql=sql) for dialect, sql in representations.items()],
        default_namespace=default_namespace,
        properties=_text_properties(properties),
    )


def _check_representations(representations: Collection[tuple[str, str]]) -> None:
    if not representations:
        raise InvalidArgument("a view needs a query in at least one SQL dialect")
    for dialect, sql in representations:
        if not dialect.strip() or not sql.strip():
            raise InvalidArgument(f"a view needs a dialect and a query, got {dialect!r}: {sql!r}")


def parse_lakehouse_def(data: bytes) -> proto.LakehouseDef:
    """Read a lakehouse definition. Raises `CorruptFile`, or `UnsupportedVersion` if it is newer than this library."""
    definition = _parse(proto.LakehouseDef, data, "")
    if definition.major_version > MAJOR_VERSION:
        raise UnsupportedVersion(
            f"lakehouse definition: format version {definition.major_version}, but this library reads versions up to "
            f"{MAJOR_VERSION}"
        )
    return definition


def parse_namespace_def(data: bytes, path: str = "") -> proto.NamespaceDef:
    """Read a namespace definition. Raises `CorruptFile`, whose message names the file `path`."""
    return _with_id(_parse(proto.NamespaceDef, data, path), path)


def parse_table_def(data: bytes, path: str = "") -> proto.TableDef:
    """Read a table definition. Raises `CorruptFile`, or `UnsupportedVersion` for an unknown kind of table."""
    definition = _with_id(_parse(proto.TableDef, data, path), path)
    if definition.table_type not in _TABLE_TYPES or definition.table_format not in _TABLE_FORMATS:
        raise UnsupportedVersion(
            f"{path or 'table definition'}: table type {definition.table_type} in format "
            f"{definition.table_format} is unknown to this library"
        )
    return definition


def parse_view_def(data: bytes, path: str = "") -> proto.ViewDef:
    """Read a view definition. Raises `CorruptFile`, whose message names the file `path`."""
    return _with_id(_parse(proto.ViewDef, data, path), path)


def parse_distributed_transaction_def(data: bytes, path: str = "") -> proto.DistributedTransactionDef:
    """Read a saved transaction. Raises `CorruptFile`, whose message names the file `path`."""
    definition = _parse(proto.DistributedTransactionDef, data, path)
    if not definition.id:
        raise CorruptFile(f"{path or 'transaction'}: it has no id", path=path)
    return definition


def serialize(definition: Message) -> bytes:
    """The serialized definition; equal messages give equal bytes. Raises `InvalidArgument` over 16 MiB."""
    data = definition.SerializeToString(deterministic=True)
    if len(data) > MAX_SIZE_BYTES:
        raise InvalidArgument(f"a definition of {len(data)} bytes is over the limit of {MAX_SIZE_BYTES} bytes")
    return data


def _parse(message: type[Definition], data: bytes, path: str) -> Definition:
    name = message.DESCRIPTOR.name
    if len(data) > MAX_SIZE_BYTES:
        raise CorruptFile(f"{path or name}: {len(data)} bytes are over the limit of {MAX_SIZE_BYTES}", path=path)
    definition = message()
    try:
        definition.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError) as error:
        raise CorruptFile(f"{path or name}: not a {name}: {error}", path=path) from error
    return definition


Identified = TypeVar("Identified", proto.NamespaceDef, proto.TableDef, proto.ViewDef)


def _with_id(definition: Identified, path: str) -> Identified:
    try:
        _check_id(definition.id)
    except ValueError as error:
        name = definition.DESCRIPTOR.name
        raise CorruptFile(f"{path or name}: its id {definition.id!r} is not a UUID", path=path) from error
    return definition


@functools.lru_cache(4096)  # the same objects are read often
def _check_id(id: str) -> None:
    uuid.UUID(id)


def _text_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidArgument(f"properties map strings to strings, got {key!r}: {value!r}")
    return dict(properties or {})


#: Parser of the definition (bytes, path) by kind of object.
PARSERS: dict[str, Callable[[bytes, str], object]] = {
    "namespace": parse_namespace_def,
    "table": parse_table_def,
    "view": parse_view_def,
    "transaction": parse_distributed_transaction_def,
}


ObjectDefinition: TypeAlias = proto.NamespaceDef | proto.TableDef | proto.ViewDef


def parse_definition(kind: str, data: bytes, path: str = "") -> ObjectDefinition:
    """Read the definition of a namespace, table or view. Raises `CorruptFile`, whose message names the file `path`."""
    return PARSERS[kind](data, path)  # type: ignore[return-value]


def parse_given_definition(kind: str, data: bytes) -> ObjectDefinition:
    """Read a serialized definition of a namespace, table or view that a caller passes.

    Unknown fields are refused, because the bytes of another message, or of a whole definition file, often parse as
    well. The files that a table definition names are not read.

    Raises `CorruptFile`, `UnsupportedVersion`, and `InvalidArgument` for unknown fields and for a view without a query.
    """
    definition = parse_definition(kind, data)
    unknown = UnknownFieldSet(definition)
    if len(unknown):
        raise InvalidArgument(
            f"the definition of a {kind} has no field {unknown[0].field_number}: the bytes are the definition of "
            "another object, a whole definition file, or of a newer format"
        )
    if isinstance(definition, proto.ViewDef):
        _check_representations([(one.dialect, one.sql) for one in definition.representations])
    return definition


def object_id(kind: str, data: bytes, path: str = "") -> str:
    """The id in the definition of a namespace, table or view. Raises `CorruptFile`."""
    return parse_definition(kind, data, path).id
