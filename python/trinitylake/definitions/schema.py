"""Schemas of tables and views.

    Schema([Column("id", "bigint", nullable=False), ("tags", "array<varchar>")], primary_key="id")

Schemas are converted to and from the schemas of definition files (format §6), of Iceberg
(`iceberg_types.py`, format §9) and of Arrow (`arrow_types.py`). PyIceberg and pyarrow are imported only when they are
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from trinitylake.definitions import iceberg_types
from trinitylake.definitions import trinitylake_pb2 as proto
from trinitylake.definitions.sql_types import (
    TYPE_KINDS,
    Column,
    ColumnLike,
    Type,
    TypeLike,
    as_column,
    column_text,
    duplicate_name,
    find,
)
from trinitylake.errors import CorruptFile, InvalidArgument, UnsupportedVersion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema as IcebergSchema

    from trinitylake.base.markup import Markup

#: Keys of `Column.properties` for values without a field in the message.
DOC_PROPERTY = "doc"
ICEBERG_TYPE_PROPERTY = "iceberg-type"


def column_to_proto(column: Column) -> proto.Column:
    """The message of a column and its nested columns."""
    type = column.type
    message = proto.Column(
        id=column.id,
        name=column.name,
        type=TYPE_KINDS.index(type.kind),  # type: ignore[arg-type]
        nullable=column.nullable,
        properties=column.properties,
        length=type.length,
        precision=type.precision,
        scale=type.scale,
    )
    if column.doc:
        message.properties[DOC_PROPERTY] = column.doc
    if type.iceberg:
        message.properties[ICEBERG_TYPE_PROPERTY] = type.iceberg
    children = [column_to_proto(child) for child in type.children]
    if type.kind == "struct":
        message.struct_fields.extend(children)
    elif type.kind == "list":
        message.list_element.CopyFrom(children[0])
    elif type.kind == "map":
        message.map_key.CopyFrom(children[0])
        message.map_value.CopyFrom(children[1])
    return message


def column_from_proto(message: proto.Column) -> Column:
    """The inverse of `column_to_proto`.

    Raises `UnsupportedVersion` for an unknown type, `InvalidArgument` for an invalid column.
    """
    if not 0 <= message.type < len(TYPE_KINDS):
        raise UnsupportedVersion(
            f"column {message.name!r} has the type number {message.type}, which this library does not know"
        )
    kind = TYPE_KINDS[message.type]
    properties = dict(message.properties)
    doc = properties.pop(DOC_PROPERTY, "")
    iceberg = properties.pop(ICEBERG_TYPE_PROPERTY, "")
    children: list[proto.Column] = []
    if kind == "struct":
        children = list(message.struct_fields)
    elif kind == "list" and message.HasField("list_element"):
        children = [message.list_element]
    elif kind == "map" and message.HasField("map_key") and message.HasField("map_value"):
        children = [message.map_key, message.map_value]
    type = Type(
        kind,
        length=message.length,
        precision=message.precision,
        scale=message.scale,
        children=tuple(column_from_proto(child) for child in children),
        iceberg=iceberg,
    )
    return Column(message.name, type, message.nullable, doc, id=message.id, properties=properties)


#: Maximum number of columns that notebooks show.
COLUMNS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table or view, in order.

    Args:
        columns: `Column`s, `(name, type)` or `(name, type, nullable)` tuples, or a mapping of name to type.
        primary_key: names of the columns that identify a row (Iceberg's identifier fields), with dots for a field of a
            struct. These columns must not be nullable. Writes do not check that keys are unique; `upsert` matches rows
            by them.

        Raises `InvalidArgument` for an unknown type, a duplicate name, or a primary key that is not a column or
        nullable.
    """

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    def __init__(
        self, columns: Iterable[ColumnLike] | Mapping[str, TypeLike], primary_key: str | Iterable[str] = ()
    ) -> None:
        entries = list(columns.items()) if isinstance(columns, Mapping) else list(columns)
        parsed = tuple(as_column(entry) for entry in entries)
        if fault := duplicate_name(parsed):
            raise InvalidArgument(fault)
        keys = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
        for key in keys:
            column = find(parsed, key)
            if column is None:
                raise InvalidArgument(f"the primary key {key!r} is not a column")
            if column.nullable:
                raise InvalidArgument(f"the primary key {key!r} is nullable: declare it with nullable=False")
        object.__setattr__(self, "columns", parsed)
        object.__setattr__(self, "primary_key", keys)

    def __str__(self) -> str:
        return f"({', '.join(column_text(column) for column in self.columns)})"

    def __repr__(self) -> str:
        key = f", PRIMARY KEY ({', '.join(self.primary_key)})" if self.primary_key else ""
        return f"Schema{str(self)[:-1]}{key})"

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from trinitylake.base.markup import framed

        return framed(columns_table(self))

    def __getitem__(self, name: str) -> Column:
        """A column by its name, or a field of a struct by its dotted name. Raises `KeyError`."""
        column = find(self.columns, name)
        if column is None:
            raise KeyError(name)
        return column

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the top-level columns."""
        return tuple(column.name for column in self.columns)

    @staticmethod
    def of(schema: SchemaLike, format_version: int = 2) -> Schema:
        """Convert any schema or data to a schema, as `as_schema` does. Raises `InvalidArgument`."""
        return as_schema(schema, format_version)

    @staticmethod
    def from_iceberg(schema: IcebergSchema) -> Schema:
        """The columns of a PyIceberg schema, with field ids, documentation and identifier fields."""
        return Schema(*iceberg_types.from_iceberg(schema))

    @staticmethod
    def from_definition(schema: proto.Schema, primary_key: Iterable[str] = ()) -> Schema:
        """The columns of a stored schema.

        Raises `UnsupportedVersion` for an unknown type, and `CorruptFile` for an invalid column.
        """
        try:
            return Schema([column_from_proto(column) for column in schema.columns], primary_key)
        except InvalidArgument as error:
            raise CorruptFile(f"schema: {error}") from error

    def to_iceberg(self) -> IcebergSchema:
        """The PyIceberg schema (format §9); field ids are assigned unless every column has one."""
        return iceberg_types.to_iceberg(self.columns, self.primary_key)

    def to_definition(self) -> proto.Schema:
        """The stored schema, without the primary key, which a table definition contains separately."""
        return proto.Schema(columns=[column_to_proto(column) for column in self.columns])

    def to_arrow(self) -> pa.Schema:
        """The pyarrow schema of the rows of a table with these columns."""
        from trinitylake.definitions import arrow_types

        return arrow_types.to_arrow(self.columns, with_ids=False)


class ArrowStreamExportable(Protocol):
    """A pyarrow or polars table, a pandas data frame, a DuckDB relation, …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowSchemaExportable(Protocol):
    """A schema of any Arrow library."""

    def __arrow_c_schema__(self) -> object: ...


SchemaLike: TypeAlias = (
    "Schema | IcebergSchema | pa.Schema | proto.Schema | Mapping[str, str | Type] | ArrowStreamExportable"
    " | ArrowSchemaExportable | list[Column]"
)


def columns_table(schema: Schema) -> Markup:
    """The columns, at most `COLUMNS_SHOWN`, as an HTML table."""
    from trinitylake.base.markup import table

    keys = set(schema.primary_key)
    rows = [
        (one.name, one.type, "" if one.nullable else "required", "key" if one.name in keys else "", one.doc)
        for one in schema.columns[:COLUMNS_SHOWN]
    ]
    total = len(schema.columns)
    caption = "columns" if total <= COLUMNS_SHOWN else f"columns (the first {COLUMNS_SHOWN} of {total})"
    return table(("column", "type", "required", "primary key", "comment"), rows, caption=caption)


def as_schema(schema: SchemaLike, format_version: int = 2) -> Schema:
    """A schema from any schema, or from data with a schema, for a table of an Iceberg format version.

    Accepts a `Schema`, a list of `Column`s or `(name, type)` tuples, a mapping of names to SQL types or to data types
    of polars, a stored schema, a PyIceberg, pyarrow or polars schema, a `LazyFrame` of polars, and every object with
    the Arrow C stream or schema interface, of which only the schema is read. Before format version 3, nanoseconds of
    Arrow become microseconds. Raises `InvalidArgument` for any other object, and for a column whose type Iceberg lacks.
    """
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, proto.Schema):
        return Schema.from_definition(schema)
    if type(schema).__module__.startswith("polars.") and hasattr(schema, "collect_schema"):
        schema = schema.collect_schema()  # of a LazyFrame; computes no rows
    if isinstance(schema, Mapping) and any(_is_of_polars(one) for one in schema.values()):
        from polars import DataFrame

        refuse_objects(schema)
        schema = DataFrame(schema=dict[str, Any](schema))
    if isinstance(schema, Mapping) or (isinstance(schema, list | tuple) and not hasattr(schema, "__arrow_c_stream__")):
        return Schema(schema)
    if type(schema).__module__.startswith("pyiceberg."):
        from pyiceberg.schema import Schema as IcebergSchema

        if isinstance(schema, IcebergSchema):
            return Schema(*iceberg_types.from_iceberg(schema))
    from trinitylake.definitions.arrow_types import arrow_schema_of, from_arrow

    arrow = arrow_schema_of(schema)
    if arrow is None:
        raise InvalidArgument(
            f"cannot read a schema from {type(schema).__name__}: expected a trinitylake, pyarrow or pyiceberg schema, "
            "a mapping of column name to SQL type, or data with the Arrow C stream interface"
        )
    return Schema(from_arrow(arrow, format_version))


def refuse_objects(polars_types: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` for a column of Python objects: polars would pass their memory addresses to Arrow."""
    for name, type in polars_types.items():
        if str(type) == "Object":
            raise InvalidArgument(f"column {name!r}: polars holds Python objects, which have no type; cast it first")


def _is_of_polars(type: object) -> bool:
    """Whether a value is a data type of polars, or its class."""
    return getattr(type, "__module__", "").startswith("polars.")


def to_iceberg_schema(schema: SchemaLike, format_version: int = 2) -> IcebergSchema:
    """A PyIceberg schema from anything that `as_schema` accepts; an Iceberg schema is returned unchanged.

    Field ids are kept if every column has one.
    """
    if type(schema).__module__.startswith("pyiceberg."):
        from pyiceberg.schema import Schema as IcebergSchema

        if isinstance(schema, IcebergSchema):
            return schema
    return as_schema(schema, format_version).to_iceberg()
