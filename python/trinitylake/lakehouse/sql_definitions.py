"""ALTER and COMMENT in SQL: change the definitions of tables, views and namespaces in a transaction.

The syntax is DuckDB's and DuckLake's (`SET PARTITIONED BY (day(ts))`, `SET SORTED BY (ts)`), and for properties and
partition fields of Iceberg tables also Spark's (`ADD PARTITION FIELD day(ts)`, `SET TBLPROPERTIES`). Each statement is
parsed into a call of the Python method that makes the change. DuckDB does not parse Spark's syntax, so this module
parses the tokens of all these statements itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import VoidTransform

from trinitylake.base.arguments import hint
from trinitylake.base.qualified_names import Identifier
from trinitylake.definitions.schema import to_iceberg_schema
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.tables.partitioning_and_sorting import partition_spec, sort_order
from trinitylake.tables.queries.duckdb_types import with_uuids
from trinitylake.tables.queries.named_objects import Names
from trinitylake.tables.queries.parsed_query import shortened
from trinitylake.tables.queries.prepared import NEEDS
from trinitylake.tables.queries.statement_text import Cursor, Written, unquoted
from trinitylake.tables.queries.tokens import tokens_of
from trinitylake.tables.sql_sandbox import arrow_result, quoted, sandbox

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

    from trinitylake.lakehouse.namespace import Namespace
    from trinitylake.lakehouse.view import View
    from trinitylake.tables.table import Table

#: The property that holds the description of an object in Iceberg.
_COMMENT = "comment"
_PROPERTY = re.compile(r"""\s*(?P<key>'[^']+'|"[^"]+"|[\w.-]+)\s*=\s*(?P<value>'(?:[^']|'')*'|[\w.+-]+)\s*""")
_KINDS = {"TABLE": "table", "VIEW": "view", "SCHEMA": "namespace", "NAMESPACE": "namespace", "DATABASE": "namespace"}


class Definitions(Names, Protocol):
    """The methods of an open transaction that ALTER and COMMENT need."""

    def alter_table(
        self, identifier: Identifier, properties: Mapping[str, str], *, remove_properties: Iterable[str]
    ) -> None: ...
    def rename_table(self, identifier: Identifier, new_identifier: Identifier) -> None: ...
    def rename_view(self, identifier: Identifier, new_identifier: Identifier) -> None: ...
    def view(self, identifier: Identifier) -> View: ...
    def replace_view(self, identifier: Identifier, *, properties: Mapping[str, str]) -> View: ...
    def alter_namespace(
        self, identifier: Identifier, properties: Mapping[str, str], *, remove_properties: Iterable[str]
    ) -> Namespace: ...


#: A function that makes a change. Its arguments are the transaction and the name of the object.
Change: TypeAlias = Callable[[Definitions, "tuple[str, ...]"], object]


@dataclass
class Alter(Written):
    """`ALTER TABLE name …`, `ALTER VIEW name …`, `ALTER SCHEMA name …` or `COMMENT ON …`.

    Attributes:
        kind: "table", "view" or "namespace".
        if_exists: whether the statement does nothing, instead of failing, if the object does not exist.
        change: function that makes the change.
    """

    kind: str
    if_exists: bool
    change: Change


def alter_statement(sql: str) -> Alter:
    """Parse ALTER or COMMENT. Raises `InvalidArgument` for a change that a lakehouse does not support."""
    if any(token.text.startswith(";") for token in tokens_of(sql)):
        raise InvalidArgument(f"{shortened(sql)}: expected one statement")
    cursor = Cursor(sql)
    found = _comment(cursor) if cursor.took("COMMENT") else _alter(cursor)
    if not cursor.is_at_end:
        raise cursor.unexpected("expected the end")
    return found


def _comment(cursor: Cursor) -> Alter:
    cursor.expect("ON")
    kind, column = "table", ""
    if not cursor.took("COLUMN"):
        kind = _kind(cursor)
    elif len(parts := cursor.name()) < 2:
        raise cursor.unexpected("expected namespace.table.column")
    else:
        column = parts[-1]
    name = parts[:-1] if column else cursor.name()
    cursor.expect("IS")
    text = "" if cursor.took("NULL") else cursor.text()
    if column:
        change = _schema_change(lambda update, path: update.update_column(path, doc=text), column)
    else:
        change = _properties_change(kind, {_COMMENT: text} if text else {}, [] if text else [_COMMENT])
    return Alter(cursor.sql, name, kind, False, change)


def _alter(cursor: Cursor) -> Alter:
    cursor.expect("ALTER")
    kind = _kind(cursor)
    if_exists = cursor.took("IF", "EXISTS")
    name = cursor.name()
    return Alter(cursor.sql, name, kind, if_exists, _change(cursor, kind))


def _kind(cursor: Cursor) -> str:
    if (kind := _KINDS.get(cursor.word)) is None:
        raise cursor.unexpected("a lakehouse has tables, views and schemas")
    cursor.skip()
    return kind


def _change(cursor: Cursor, kind: str) -> Change:
    if kind != "namespace" and cursor.took("RENAME", "TO"):
        return _rename(kind, cursor.name())
    if cursor.took("SET", "TBLPROPERTIES") or cursor.took("SET", "PROPERTIES") or cursor.took_before("SET", "("):
        return _properties_change(kind, _properties(cursor), [])
    if cursor.took("UNSET", "TBLPROPERTIES") or cursor.took("UNSET", "PROPERTIES") or cursor.took_before("RESET", "("):
        cursor.took("IF", "EXISTS")
        return _properties_change(kind, {}, [unquoted(one) for one in cursor.in_brackets()])
    if kind == "table":
        if cursor.took("SET", "SCHEMA"):
            namespace = cursor.name()
            return lambda transaction, name: transaction.rename_table(name, (*namespace, name[-1]))
        if cursor.took("SET", "SORTED", "BY"):
            return _sorted_by(cursor.in_brackets())
        if cursor.took("RESET", "SORTED", "BY"):
            return _sorted_by([])
        if (change := _partition_change(cursor)) is not None or (change := _column_change(cursor)) is not None:
            return change
    raise cursor.unexpected(f"expected a change of a {kind}, such as {_EXAMPLES[kind]}")


_EXAMPLES = {
    "table": "ADD COLUMN, DROP COLUMN, RENAME COLUMN, ALTER COLUMN … TYPE, RENAME TO, SET (key = 'value'), "
    "SET PARTITIONED BY (…), ADD PARTITION FIELD or SET SORTED BY (…)",
    "view": "RENAME TO or SET (key = 'value')",
    "namespace": "SET (key = 'value')",
}


def _rename(kind: str, new: tuple[str, ...]) -> Change:
    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        rename = transaction.rename_table if kind == "table" else transaction.rename_view
        rename(name, new if len(new) > 1 else (*name[:-1], *new))

    return change


# Properties


def _properties(cursor: Cursor) -> dict[str, str]:
    found = {}
    for one in cursor.in_brackets():
        if (match := _PROPERTY.fullmatch(one)) is None:
            raise InvalidArgument(f"{shortened(cursor.sql)}: expected key = 'value', not {one!r}")
        found[unquoted(match["key"])] = unquoted(match["value"])
    return found


def _properties_change(kind: str, given: dict[str, str], removed: list[str]) -> Change:
    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        if kind == "table":
            transaction.alter_table(name, given, remove_properties=removed)
        elif kind == "namespace":
            transaction.alter_namespace(".".join(name), given, remove_properties=removed)
        else:
            present = transaction.view(name).properties
            kept = {key: value for key, value in (present | given).items() if key not in removed}
            transaction.replace_view(name, properties=kept)

    return change


# Columns


def _column_change(cursor: Cursor) -> Change | None:
    if cursor.took("ADD", "COLUMNS"):
        changes = [_added_column(Cursor(one), False) for one in cursor.in_brackets()]
        return lambda transaction, name: [change(transaction, name) for change in changes]
    if cursor.took("ADD", "COLUMN") or (
        cursor.word == "ADD" and cursor.peek_word(1) != "PARTITION" and cursor.took("ADD")
    ):
        return _added_column(cursor, cursor.took("IF", "NOT", "EXISTS"))
    if cursor.took("DROP", "COLUMN") or (
        cursor.word == "DROP" and cursor.peek_word(1) != "PARTITION" and cursor.took("DROP")
    ):
        if_exists = cursor.took("IF", "EXISTS")
        path = cursor.name()
        cursor.refuse("CASCADE", "drop what depends on the column first")
        cursor.took("RESTRICT")
        return _schema_change(
            lambda update, path: update.delete_column(path), *path, if_exists=if_exists, refuses_used=True
        )
    if cursor.took("RENAME", "COLUMN") or cursor.took("RENAME"):
        path = cursor.name()
        cursor.expect("TO")
        new = _column_name(cursor)
        return _schema_change(lambda update, path: update.rename_column(path, new), *path)
    if cursor.took("ALTER", "COLUMN") or cursor.took("ALTER"):
        return _altered_column(cursor, cursor.name())
    return None


def _added_column(cursor: Cursor, if_not_exists: bool) -> Change:
    path = cursor.name()
    type = cursor.until("COMMENT", "FIRST", "AFTER")
    if not type or re.search(r"\bNOT\s+NULL\b", type, re.IGNORECASE):
        raise InvalidArgument(
            f"{shortened(cursor.sql)}: a new column needs a type, and cannot be NOT NULL, because existing rows "
            "have no value"
        )
    doc = cursor.text() if cursor.took("COMMENT") else None
    place = _place(cursor)
    if not cursor.is_at_end:
        raise cursor.unexpected("expected the end")

    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        if if_not_exists and path[-1].lower() in (one.lower() for one in table.schema.names) and len(path) == 1:
            return
        parents = (_column(table, path[0]), *path[1:]) if len(path) > 1 else path
        field = _iceberg_type(cursor.sql, path[-1], type, table)
        with table.update_schema() as update:
            update.add_column(parents, field, doc=doc)
            place(update, parents)

    return change


def _altered_column(cursor: Cursor, path: tuple[str, ...]) -> Change:
    cursor.refuse("SET NOT NULL", "existing rows may have no value; use NOT NULL or primary_key= in CREATE TABLE")
    cursor.refuse("SET DEFAULT", "columns cannot have default values")
    cursor.refuse("DROP DEFAULT", "columns cannot have default values")
    if cursor.took("DROP", "NOT", "NULL"):
        return _schema_change(lambda update, path: update.make_column_optional(path), *path, refuses_used=True)
    if cursor.took("COMMENT"):
        doc = cursor.text()
        return _schema_change(lambda update, path: update.update_column(path, doc=doc), *path)
    if cursor.word in ("FIRST", "AFTER"):
        return _schema_change(_place(cursor), *path)
    cursor.took("SET", "DATA")
    cursor.expect("TYPE")
    type = cursor.until("USING")
    cursor.refuse("USING", "change the values with UPDATE, in a new column")

    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        column = (_column(table, path[0]), *path[1:])
        wanted = _iceberg_type(cursor.sql, path[-1], type, table)
        with table.update_schema() as update:
            try:
                update.update_column(column, wanted)
            except ValidationError:
                raise InvalidArgument(
                    f"column {'.'.join(column)} of table {table.name} cannot become {type}: only INTEGER to BIGINT, "
                    "FLOAT to DOUBLE, and DECIMAL to more digits are possible"
                ) from None

    return change


def _place(cursor: Cursor) -> Callable[[Any, tuple[str, ...]], Any]:
    """Read FIRST, AFTER another column, or nothing; returns a function that moves a column to this place."""
    if cursor.took("FIRST"):
        return lambda update, path: update.move_first(path)
    if cursor.took("AFTER"):
        after = _column_name(cursor)
        return lambda update, path: update.move_after(path, (*path[:-1], after))
    return lambda update, path: None


def _column_name(cursor: Cursor) -> str:
    name = cursor.name()
    if len(name) != 1:
        raise InvalidArgument(f"{shortened(cursor.sql)}: expected the name of one column, not {'.'.join(name)}")
    return name[0]


def _schema_change(
    change: Callable[[Any, tuple[str, ...]], Any], *path: str, if_exists: bool = False, refuses_used: bool = False
) -> Change:
    """A change of one column.

    Args:
        change: function that makes the change; its arguments are PyIceberg's schema update and the path of the column.
        path: path of the column.
        if_exists: whether to do nothing, instead of failing, if the column does not exist.
        refuses_used: whether to refuse the change for a column of the primary key or of a partition field.
    """

    def run(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        if if_exists and path[0].lower() not in (one.lower() for one in table.schema.names):
            return
        column = _column(table, path[0])
        if refuses_used and len(path) == 1:
            _check_unused(table, column)
        with table.update_schema() as update:
            change(update, (column, *path[1:]))

    return run


def _check_unused(table: Table, column: str) -> None:
    if column in table.primary_key:
        raise InvalidArgument(
            f"cannot drop column {column} or its NOT NULL: it is in the primary key of table {table.name}"
        )
    schema = table.iceberg.schema()
    fields = [one.name for one in _live_fields(table) if schema.find_column_name(one.source_id) == column]
    if fields:
        raise InvalidArgument(
            f"table {table.name} is partitioned by column {column}: ALTER TABLE {table.name} DROP PARTITION FIELD "
            f"{fields[0]} first"
        )


def _column(table: Table, name: str) -> str:
    """The table's spelling of the column `name`, ignoring case. Raises `InvalidArgument` for an unknown column."""
    names = table.schema.names
    alike = [name] if name in names else [one for one in names if one.lower() == name.lower()]
    if len(alike) != 1:
        raise InvalidArgument(f"table {table.name} has no column {name!r}; {hint(name, names)}")
    return alike[0]


def _iceberg_type(sql: str, column: str, type: str, table: Table) -> IcebergType:
    fields, keys = declared_columns(sql, [f"{quoted(column)} {type}"])
    if keys:
        raise InvalidArgument(f"{shortened(sql)}: a primary key can only be given in CREATE TABLE")
    return to_iceberg_schema(fields, table.iceberg.metadata.format_version).fields[0].field_type


def declared_columns(sql: str, columns: list[str]) -> tuple[pa.Schema, tuple[str, ...]]:
    """Arrow schema and primary key of column declarations. Raises `InvalidArgument` for unsupported constraints."""
    subject = f"statement {shortened(sql)}"
    with sandbox(subject, needs=NEEDS, quotes_rows=True) as connection:
        connection.execute(f"CREATE TABLE declared ({', '.join(columns)}\n)")
        kinds = connection.execute("SELECT DISTINCT constraint_type FROM duckdb_constraints()").fetchall()
        if others := {kind for (kind,) in kinds} - {"NOT NULL", "PRIMARY KEY"}:
            raise InvalidArgument(f"{subject}: tables have no constraint {', '.join(sorted(others))}")
        described: list[tuple[Any, ...]] = connection.execute("DESCRIBE declared").fetchall()
        schema: pa.Schema = arrow_result(connection, "SELECT * FROM declared").to_arrow_table().schema
        schema = with_uuids(schema, [kind for _, kind, *_ in described], connection)
    if defaults := [name for name, *_, default, _ in described if default is not None]:
        raise InvalidArgument(f"{subject}: columns cannot have default values: {', '.join(defaults)}")
    fields = [
        field.with_nullable(nullable == "YES") for field, (_, _, nullable, *_) in zip(schema, described, strict=True)
    ]
    keys = tuple(name for name, _, _, key, *_ in described if key == "PRI")
    return pa.schema(fields), keys


# Partitions


def _partition_change(cursor: Cursor) -> Change | None:
    if cursor.took("SET", "PARTITIONED", "BY"):
        return _partitioned_by(cursor.in_brackets())
    if cursor.took("RESET", "PARTITIONED", "BY"):
        return _partitioned_by([])
    if cursor.took("ADD", "PARTITION", "FIELD"):
        return _partition_fields([], _field_text(cursor, "AS"), _name_after_as(cursor))
    if cursor.took("DROP", "PARTITION", "FIELD"):
        return _partition_fields([_field_text(cursor)], "", "")
    if cursor.took("REPLACE", "PARTITION", "FIELD"):
        before = _field_text(cursor, "WITH")
        cursor.expect("WITH")
        return _partition_fields([before], _field_text(cursor, "AS"), _name_after_as(cursor))
    return None


def _field_text(cursor: Cursor, *until: str) -> str:
    """Read the text of a partition field, up to one of the words `until` or the end of the statement."""
    if cursor.is_at_end:
        raise cursor.unexpected("expected a partition field such as day(ts)")
    return cursor.until(*until)


def _name_after_as(cursor: Cursor) -> str:
    return cursor.name()[-1] if cursor.took("AS") else ""


def _partitioned_by(expressions: list[str]) -> Change:
    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        wanted, present = _fields(table, expressions), _live_fields(table)
        _change_spec(
            table,
            [one.name for one in present if _term(one) not in map(_term, wanted)],
            [(one, "") for one in wanted if _term(one) not in map(_term, present)],
        )

    return change


def _partition_fields(removed: list[str], added: str, new_name: str) -> Change:
    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        present = _live_fields(table)
        gone = []
        for one in removed:
            by_name = [field.name for field in present if field.name == unquoted(one)]
            if not by_name:
                [term] = map(_term, _fields(table, [one]))
                by_name = [field.name for field in present if _term(field) == term]
            if not by_name:
                names = ", ".join(field.name for field in present) or "no partition fields"
                raise InvalidArgument(f"table {table.name} is not partitioned by {one}; it has {names}")
            gone += by_name
        new = _fields(table, [added] if added else [])
        if any(_term(one) in map(_term, present) and one.name not in gone for one in new):
            raise InvalidArgument(f"table {table.name} is already partitioned by {added}")
        _change_spec(table, gone, [(one, new_name) for one in new])

    return change


def _change_spec(table: Table, removed: list[str], added: list[tuple[PartitionField, str]]) -> None:
    schema = table.iceberg.schema()
    with table.update_spec() as update:
        for name in removed:
            update.remove_field(name)
        for field, name in added:
            column = schema.find_column_name(field.source_id)
            assert column is not None
            update.add_field(column, field.transform, name or _field_name(table, field))


def _field_name(table: Table, field: PartitionField) -> str:
    """The name of a new partition field: the name of an earlier field with the same transform, or an unused name."""
    earlier = [one for spec in table.iceberg.specs().values() for one in spec.fields]
    for one in earlier:
        if _term(one) == _term(field):
            return one.name
    taken = {one.name for one in earlier}
    width = re.search(r"\d+", str(field.transform))
    numbered = (f"{field.name}_{number}" for number in chain([int(width[0])] if width else [], count(2)))
    return next(name for name in chain([field.name], numbered) if name not in taken)


def _sorted_by(expressions: list[str]) -> Change:
    def change(transaction: Definitions, name: tuple[str, ...]) -> None:
        table = transaction.table(name)
        schema = table.iceberg.schema()
        order = sort_order(expressions, schema)
        with translated(), table.iceberg.update_sort_order() as update:
            for field in order.fields:
                add = update.desc if field.direction == SortDirection.DESC else update.asc
                column = schema.find_column_name(field.source_id)
                assert column is not None
                add(column, field.transform, field.null_order)

    return change


def _live_fields(table: Table) -> list[PartitionField]:
    return [field for field in table.iceberg.spec().fields if not isinstance(field.transform, VoidTransform)]


def _fields(table: Table, expressions: list[str]) -> tuple[PartitionField, ...]:
    return partition_spec(expressions, table.iceberg.schema()).fields


def _term(field: PartitionField) -> tuple[int, str]:
    return field.source_id, str(field.transform)
