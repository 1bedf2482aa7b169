"""Types and columns.

    Column("id", "bigint", nullable=False)
    Column("tags", list_of("varchar"))
    Column("price", "numeric(10,2)", doc="in euros")

A type is written in SQL (`"varchar(20)"`, `"array<int>"`, `"row(a int, b varchar)"`; `sql_type_grammar.py` reads it)
or built with `list_of`, `map_of` and `struct_of`. These classes are immutable values; `schema.py` converts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trinitylake.definitions.sql_type_grammar import check_depth, parse
from trinitylake.errors import InvalidArgument

#: Kinds of types in the format (§6, `DataType`), as SQL words.
TYPE_KINDS = (
    "boolean",
    "smallint",
    "int",
    "bigint",
    "decimal",
    "real",
    "double",
    "char",
    "varchar",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "fixed",
    "binary",
    "struct",
    "map",
    "list",
)
MAX_DECIMAL_PRECISION = 38
MAX_FRACTION_DIGITS = 9
MAX_LENGTH = (1 << 31) - 1
DEFAULT_FRACTION_DIGITS = 6

#: A field name that needs no quotes in a SQL type.
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
#: DuckDB's words for kinds whose name in the format is different.
_SQL_WORDS = {"int": "INTEGER", "real": "FLOAT", "binary": "BLOB"}
_WITH_LENGTH = ("char", "varchar", "fixed", "binary")
_WITH_FRACTION = ("time", "timetz", "timestamp", "timestamptz")


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a column.

    Attributes:
        kind: one of `TYPE_KINDS`.
        length: maximum length of char and varchar in characters, of fixed and binary in bytes; 0 means no limit.
        precision: number of digits of a decimal; number of fractional digits of a second of the time types, 1 to 9.
        scale: number of digits of a decimal after the point.
        children: the fields of a struct; the key and the value of a map; the element of a list.
        iceberg: the exact Iceberg type if the kind is ambiguous, such as "uuid"; otherwise "".
    """

    kind: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    children: tuple[Column, ...] = ()
    iceberg: str = ""

    def __post_init__(self) -> None:
        if self.kind not in TYPE_KINDS:
            raise InvalidArgument(f"unknown type {self.kind!r}: expected one of {', '.join(TYPE_KINDS)}")
        if self.kind in _WITH_FRACTION and self.precision == 0:
            object.__setattr__(self, "precision", DEFAULT_FRACTION_DIGITS)
        check_depth(self.children, lambda part: part.type.children)
        if reason := self._fault():
            raise InvalidArgument(f"bad type {self}: {reason}")

    def _fault(self) -> str:
        if self.length < 0 or (self.length and self.kind not in _WITH_LENGTH):
            return f"{self.kind} has no length"
        if self.length > MAX_LENGTH:
            return f"a length is at most {MAX_LENGTH}"
        if self.kind == "fixed" and not self.length:
            return "fixed needs a length in bytes, such as fixed(16)"
        if self.kind == "decimal":
            if not 1 <= self.precision <= MAX_DECIMAL_PRECISION:
                return f"the precision of a decimal is 1 to {MAX_DECIMAL_PRECISION} digits"
            if not 0 <= self.scale <= self.precision:
                return f"the scale of a decimal is 0 to its precision, {self.precision}"
        elif self.scale:
            return f"{self.kind} has no scale"
        elif self.kind in _WITH_FRACTION:
            if not 1 <= self.precision <= MAX_FRACTION_DIGITS:
                return f"a second has 1 to {MAX_FRACTION_DIGITS} fractional digits here (6 = microseconds)"
        elif self.precision:
            return f"{self.kind} has no precision"
        expected = {"map": 2, "list": 1}.get(self.kind, len(self.children) if self.kind == "struct" else 0)
        if len(self.children) != expected:
            return f"{self.kind} has {expected} nested types, not {len(self.children)}"
        if self.kind == "struct":
            return duplicate_name(self.children)
        return ""

    def __repr__(self) -> str:
        return f"Type({self})"

    def __str__(self) -> str:
        """The type in SQL, in DuckDB's spelling if DuckDB has the type; `parse_type` is the inverse."""
        if self.iceberg:
            return self.iceberg.upper()
        if self.kind == "decimal":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.kind == "struct":
            return f"STRUCT({', '.join(column_text(child) for child in self.children)})"
        if self.kind == "list" and self.children:
            element = _element_text(self.children[0])
            return f"{element}[]" if self.children[0].nullable else f"ARRAY({element})"
        if self.kind == "map" and len(self.children) == 2:
            return f"MAP({_element_text(self.children[0])}, {_element_text(self.children[1])})"
        word, zone = _SQL_WORDS.get(self.kind, self.kind.upper()), ""
        if self.kind.endswith("tz"):
            word, zone = word.removesuffix("TZ"), " WITH TIME ZONE"
        if self.kind == "timestamp" and self.precision == MAX_FRACTION_DIGITS:
            return "TIMESTAMP_NS"
        if self.length:
            return f"{word}({self.length})"
        if self.kind in _WITH_FRACTION and self.precision != DEFAULT_FRACTION_DIGITS:
            return f"{word}({self.precision}){zone}"
        return word + zone


@dataclass(frozen=True, slots=True)
class Column:
    """A column; also a field of a struct, the key or value of a map, or the element of a list.

    Args:
        name: not empty, unique among the columns of its parent.
        type: a `Type`, or a SQL type such as `"decimal(10,2)"`.
        nullable: whether values may be null.
        doc: a comment.
        id: the Iceberg field id, which renames do not change; 0 if it is not assigned yet.
        properties: further properties of the column.

    Raises:
        InvalidArgument: for an unknown type.
    """

    name: str
    type: Type
    nullable: bool = True
    doc: str = ""
    id: int = field(default=0, kw_only=True)
    properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)

    def __init__(
        self,
        name: str,
        type: TypeLike,
        nullable: bool = True,
        doc: str = "",
        *,
        id: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"a column needs a name, got {name!r}")
        try:
            parsed = as_type(type)
        except InvalidArgument as error:
            raise InvalidArgument(f"column {name!r}: {error}") from None
        for attribute, value in (
            ("name", name),
            ("type", parsed),
            ("nullable", nullable),
            ("doc", doc),
            ("id", id),
            ("properties", dict(properties or {})),
        ):
            object.__setattr__(self, attribute, value)


ColumnLike: TypeAlias = "Column | tuple[str, TypeLike] | tuple[str, TypeLike, bool]"
TypeLike: TypeAlias = "Type | str"


def list_of(element: TypeLike, nullable: bool = True) -> Type:
    """A list type; with `nullable`, an element may be null."""
    return Type("list", children=(Column("element", element, nullable),))


def map_of(key: TypeLike, value: TypeLike, nullable: bool = True) -> Type:
    """A map type; with `nullable`, a value may be null. A key is never null."""
    return Type("map", children=(Column("key", key, nullable=False), Column("value", value, nullable)))


def struct_of(*fields: ColumnLike, **named: TypeLike) -> Type:
    """A struct type, from `Column`s or tuples, from keyword arguments, or both."""
    columns = [as_column(field) for field in fields]
    columns += [Column(name, type) for name, type in named.items()]
    return Type("struct", children=tuple(columns))


def as_type(type: TypeLike) -> Type:
    """Parse a SQL type; a `Type` is returned unchanged. Raises `InvalidArgument`."""
    if isinstance(type, Type):
        return type
    if isinstance(type, str):
        return parse_type(type)
    raise InvalidArgument(f"expected a SQL type or a Type, got {type!r}")


def parse_type(text: str) -> Type:
    """Parse a SQL type (`sql_type_grammar.py`). Raises `InvalidArgument` with the invalid word and its position."""

    def build(kind: str, arguments: Sequence[int], fields: Sequence[tuple[str, Type, bool]]) -> Type:
        try:
            return _built(kind, arguments, fields)
        except InvalidArgument as error:
            raise InvalidArgument(f"{error} (in {text!r})") from None

    return parse(text, build, Type("fixed", length=16, iceberg="uuid"))


def as_column(column: ColumnLike) -> Column:
    """Make a column from a tuple; a `Column` is returned unchanged. Raises `InvalidArgument`."""
    if isinstance(column, Column):
        return column
    if not isinstance(column, tuple) or len(column) not in (2, 3):
        raise InvalidArgument(f"expected a Column or (name, type[, nullable]), got {column!r}")
    return Column(*column)


def find(columns: Iterable[Column], name: str) -> Column | None:
    """Find a column by its name, or a nested column by its dotted name; None if it does not exist."""
    columns = tuple(columns)
    for column in columns:
        if column.name == name:
            return column
    for column in columns:
        if name.startswith(column.name + ".") and (nested := find(column.type.children, name[len(column.name) + 1 :])):
            return nested
    return None


def duplicate_name(columns: Iterable[Column]) -> str:
    """An error message if two columns have the same name, otherwise ""."""
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            return f"two columns are named {column.name!r}"
        seen.add(column.name)
    return ""


def _built(kind: str, arguments: Sequence[int], fields: Sequence[tuple[str, Type, bool]]) -> Type:
    first, second = (*arguments, 0, 0)[:2]
    if kind == "decimal":
        return Type("decimal", precision=first if arguments else MAX_DECIMAL_PRECISION, scale=second)
    if kind in _WITH_FRACTION:
        return Type(kind, precision=first)
    return Type(kind, length=first, children=tuple(Column(*field) for field in fields))


def column_text(column: Column) -> str:
    """A column in SQL, such as `"a b" VARCHAR NOT NULL`."""
    name = column.name
    if not _PLAIN_NAME.fullmatch(name):
        name = '"' + name.replace('"', '""') + '"'
    return f"{name} {column.type}" + ("" if column.nullable else " NOT NULL")


def _element_text(column: Column) -> str:
    return str(column.type) + ("" if column.nullable or column.name == "key" else " NOT NULL")
