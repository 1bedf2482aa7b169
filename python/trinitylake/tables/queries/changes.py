"""UPDATE, DELETE and MERGE: DuckDB finds rows by their positions, and computes their new values.

The statement is rewritten as one or more queries over the rows of the table with their files and positions.
`merging/row_changes.py` applies the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from trinitylake.base.arguments import hint
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.written_values import check_columns
from trinitylake.tables.merge import WriteResult
from trinitylake.tables.merging.row_changes import FILE, POSITION, FoundRows, PlacedRows, RowChanges
from trinitylake.tables.queries.named_objects import NameOf, Names
from trinitylake.tables.queries.parsed_query import shortened, tree_of
from trinitylake.tables.queries.prepared import NEEDS, PreparedQuery, QueryOptions
from trinitylake.tables.queries.running import planning
from trinitylake.tables.queries.source import ArrowRows, TableSource
from trinitylake.tables.queries.statement_text import Cursor, Delete, MergeInto, Update, When
from trinitylake.tables.sql_sandbox import folded, quoted
from trinitylake.tables.table import Table

#: DuckDB compares two values of any of these types as integers.
_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
#: Name of the table's rows in a query.
_TARGET = "trinitylake_target"
_PLACE = f"{quoted(FILE)}, {quoted(POSITION)}"


class Changes:
    """A statement that changes rows of a table, in a transaction.

    Args:
        names: resolves the names of other tables.
        name: namespace and name of the changed table.
    """

    def __init__(self, names: Names, table: Table, name: NameOf, sql: str, options: QueryOptions) -> None:
        self._names = names
        self._table = table
        self._name = name
        self._sql = sql
        self._options = options
        self._source = TableSource(table)

    @property
    def columns(self) -> list[str]:
        """The columns of the table."""
        return self._source.names

    @property
    def types(self) -> dict[str, str]:
        """The DuckDB types of the columns."""
        return self._source.types

    def update(self, statement: Update) -> WriteResult:
        """Run an UPDATE. Raises `InvalidArgument` for an invalid statement."""
        values = self._typed(statement.values)
        picked = ", ".join([_PLACE, *(f"{text} AS {quoted(f'v{at}')}" for at, text in enumerate(values.values()))])
        columns = {name: f"v{at}" for at, name in enumerate(values)}
        return self._run("update", [(_selection(statement), picked, columns)])

    def delete(self, statement: Delete) -> WriteResult:
        """Run a DELETE. Raises `InvalidArgument` for an invalid statement."""
        return self._run("delete", [(_selection(statement), f"DISTINCT {_PLACE}", None)])

    def merge(self, statement: MergeInto) -> WriteResult:
        """Run a MERGE. Raises `InvalidArgument` for an invalid statement."""
        alias, on = quoted(statement.alias), f"({statement.condition}\n)"
        changes: list[Change] = []
        inserts: list[Change] = []
        sides = {when.side for when in statement.clauses if when.action != "nothing"}
        keys = None if "target" in sides else self._keys(statement)  # rows without a match may be in any file
        for side, whens in _by_side(statement.clauses).items():
            for number, when in enumerate(whens):
                earlier = [f"NOT coalesce(({one.condition}\n), false)" for one in whens[:number]]
                holds = " AND ".join([f"coalesce(({when.condition}\n), false)", *earlier])
                if when.action == "nothing":
                    continue
                if side == "target":
                    missing = f"NOT EXISTS (SELECT 1 FROM {statement.source}\nWHERE {on})"
                    body = "FROM ", f" AS {alias} WHERE {missing} AND {holds}"
                elif side == "matched":
                    body = "FROM ", f" AS {alias}, {statement.source}\nWHERE {on} AND {holds}"
                else:
                    before_target = f"FROM {statement.source}\nWHERE NOT EXISTS (SELECT 1 FROM "
                    body = before_target, f" AS {alias} WHERE {on}) AND {holds}"
                self._check_action(side, when)
                values = self._typed(self._all_of(statement, when)) if when.action != "delete" else {}
                picked = [f"{text} AS {quoted(f'v{at}')}" for at, text in enumerate(values.values())]
                columns = None if when.action == "delete" else {name: f"v{at}" for at, name in enumerate(values)}
                if side == "source":
                    inserts.append((_filled(statement.before, *body), ", ".join(picked), columns))
                else:
                    changes.append((_filled(statement.before, *body), ", ".join([_PLACE, *picked]), columns))
        return self._run("merge", changes, inserts, keys)

    def _keys(self, statement: MergeInto) -> Callable[[pa.Schema], pa.Table | None] | None:
        """Function that finds the key values of the source, which matching rows must have; None for no keys."""
        # Keys are columns that the condition compares by equality, `t.id = s.id`, if DuckDB compares the two types
        # without a cast to a third type.
        alias = source_name(statement)
        with planning(NEEDS) as connection:
            condition = tree_of(connection, f"SELECT 1 WHERE ({statement.condition}\n)")
        clause = condition.get("statements", [{}])[0].get("node", {}).get("where_clause") or {}
        pairs = dict(_equal_columns(clause, folded(statement.alias), folded(alias)))
        pairs = {self.column(name): other for name, other in pairs.items()}
        picked = ", ".join(f"{quoted(alias)}.{quoted(other)} AS {quoted(name)}" for name, other in pairs.items())
        if not pairs:
            return None
        given = dict(self._prepared(f"{statement.before}SELECT {picked} FROM {statement.source}", {}).columns)
        types = self._source.types
        names = [name for name in pairs if given[name] == types[name] or {given[name], types[name]} <= _INTEGERS]
        if not names:
            return None
        # A number that does not fit the column matches no row, so it becomes NULL.
        picked = ", ".join(
            f"TRY_CAST({quoted(alias)}.{quoted(pairs[name])} AS {types[name]}) AS {quoted(name)}" for name in names
        )
        text = f"{statement.before}SELECT DISTINCT {picked} FROM {statement.source}"

        def found(target: pa.Schema) -> pa.Table | None:
            with self._prepared(text, {}).running() as result:
                rows = result.to_arrow_table()
            try:
                return rows.cast(
                    pa.schema([target.field(name).remove_metadata().with_nullable(True) for name in names])
                )
            except pa.ArrowException:
                return None

        return found

    def _run(
        self,
        statement: str,
        changes: Sequence[Change],
        inserts: Sequence[Change] = (),
        keys: Callable[[pa.Schema], pa.Table | None] | None = None,
    ) -> WriteResult:
        table = f"{quoted(self._name[0])}.{quoted(self._name[1])}"
        filter = None
        for text, _, _ in [*changes, *inserts]:
            one = self._prepared(text(table, "1"), {}).filter_of(self._name)
            filter = one if filter is None else filter | one

        def find(rows: PlacedRows) -> RowChanges:
            dataset = ArrowRows(rows.schema, rows.batches, lambda: f"table {self._table.name}")
            target = f"({self._source.placed(_TARGET)})"

            def found(text: Callable[[str, str], str], picked: str) -> pa.Table:
                with self._prepared(text(target, picked), {_TARGET: dataset}).running() as result:
                    return result.to_arrow_table()

            return RowChanges(
                [FoundRows(found(text, picked), columns) for text, picked, columns in changes],
                [_renamed(found(text, picked), columns or {}) for text, picked, columns in inserts],
            )

        if filter is None:
            return WriteResult(0, 0, 0)
        return self._table._change_rows(filter, find, statement, keys)

    def _prepared(self, sql: str, given: dict[str, Any]) -> PreparedQuery:
        given = {**(self._options.given or {}), **given}
        return PreparedQuery(sql, self._names, replace(self._options, given=given))

    def _typed(self, values: dict[str, str]) -> dict[str, str]:
        check_columns(self._source.schema)  # `iceberg` would read the whole table
        types = self._source.types
        known = {self.column(name): text for name, text in values.items()}
        return {name: f"CAST(({text}\n) AS {types[name]})" for name, text in known.items()}

    def column(self, name: str) -> str:
        """The table's spelling of a column name. Raises `InvalidArgument` for an unknown column."""
        names = self._source.names
        if name in names:
            return name
        alike = [one for one in names if one.lower() == name.lower()]
        if len(alike) == 1:
            return alike[0]
        hinted = hint(name, names)
        raise InvalidArgument(f"{shortened(self._sql)}: table {self._table.name} has no column {name!r}; {hinted}")

    def _all_of(self, statement: MergeInto, when: When) -> dict[str, str]:
        """The values of a clause; by default all columns that both sides have."""
        if isinstance(when.values, list):
            names = self._source.names
            if len(when.values) != len(names):
                raise InvalidArgument(
                    f"{shortened(self._sql)}: {len(when.values)} values, but table {self._table.name} has {len(names)} "
                    f"columns: {', '.join(names)}"
                )
            return dict(zip(names, when.values, strict=True))
        if when.values is not None:
            return when.values
        source = self._prepared(f"{statement.before}SELECT * FROM {statement.source}", {})
        alias = quoted(source_name(statement))
        there = {name.lower(): name for name, _ in source.columns}
        return {name: f"{alias}.{quoted(there[name.lower()])}" for name in self._source.names if name.lower() in there}

    def _check_action(self, side: str, when: When) -> None:
        if (when.action == "insert") != (side == "source"):
            raise InvalidArgument(
                f"{shortened(self._sql)}: WHEN MATCHED takes UPDATE or DELETE, WHEN NOT MATCHED takes INSERT"
            )


#: Function from the rows of the table and a SELECT list to a query; the SELECT list; and its column for each table
#: column.
Change: TypeAlias = "tuple[Callable[[str, str], str], str, dict[str, str] | None]"


def source_name(statement: MergeInto) -> str:
    """The name of the source of a MERGE. Raises `InvalidArgument` if it has none."""
    cursor = Cursor(statement.source)
    if cursor.sign == "(":
        cursor.in_brackets()
        name = cursor.alias()
    else:
        last = cursor.name()[-1]
        name = cursor.alias() or last
    if not name:
        raise InvalidArgument(
            f"{shortened(statement.sql)}: the source of a MERGE needs a name: write USING (…) AS name"
        )
    return name


def _equal_columns(condition: dict[str, Any], target: str, source: str) -> Iterator[tuple[str, str]]:
    """Pairs of a target and a source column that the condition requires to be equal."""
    if condition.get("type") == "CONJUNCTION_AND":
        for part in condition["children"]:
            yield from _equal_columns(part, target, source)
    elif condition.get("type") == "COMPARE_EQUAL":
        sides = {}
        for side in (condition["left"], condition["right"]):
            if side.get("type") == "COLUMN_REF" and len(names := side["column_names"]) == 2:
                sides[folded(names[0])] = names[1]
        if set(sides) == {target, source}:
            yield sides[target], sides[source]


def _selection(statement: Update | Delete) -> Callable[[str, str], str]:
    others = f", {statement.others}" if statement.others else ""
    return _filled(statement.before, "FROM ", f" AS {quoted(statement.alias)}{others}\nWHERE ({statement.condition}\n)")


def _filled(before: str, start: str, end: str) -> Callable[[str, str], str]:
    """Function from the rows of the table and a SELECT list to the text of a query."""
    return lambda target, picked: f"{before}SELECT {picked} {start}{target}{end}"


def _by_side(clauses: Iterable[When]) -> dict[str, list[When]]:
    sides: dict[str, list[When]] = {}
    for clause in clauses:
        sides.setdefault(clause.side, []).append(clause)
    return sides


def _renamed(rows: pa.Table, columns: dict[str, str]) -> pa.Table:
    return rows.select(list(columns.values())).rename_columns(list(columns))
