"""Clauses of a MERGE: conditions and values in SQL over `source` and `target`.

DuckDB evaluates the SQL in a sandbox, over pairs of rows. It is not needed if clauses have no conditions and all values
are columns of the source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from trinitylake.errors import InvalidArgument
from trinitylake.tables.declared_limits import Limits
from trinitylake.tables.merging.row_operations import take_rows
from trinitylake.tables.sql_sandbox import arrow_result, names_in_query, nodes_of, quoted, sandbox

Action = Literal["update", "delete", "insert"]
_PLAIN = re.compile(r'source\.(?:(\w+)|"((?:[^"]|"")+)")', re.IGNORECASE)
#: Maximum number of pairs that are passed to DuckDB at once.
_PAIRS = 1_000_000


@dataclass(frozen=True)
class Clause:
    """One `WHEN` of a MERGE.

    Attributes:
        action: "update", "delete" or "insert".
        condition: SQL; None if the clause always applies.
        values: SQL by column of the table. None for all columns that both sides have.
    """

    action: Action
    condition: str | None = None
    values: Mapping[str, str] | None = None

    def plain(self, source: pa.Schema, target: pa.Schema) -> dict[str, str]:
        """The columns that get the unchanged value of a source column, with the name of the source column."""
        if self.values is None:
            return {name: name for name in target.names if name in source.names}
        return {name: column for name, text in self.values.items() if (column := _column_of(text, source)) is not None}

    def computed(self, source: pa.Schema) -> dict[str, str]:
        """The columns that get the value of a SQL expression, with the expression."""
        texts = self.values or {}
        return {name: text for name, text in texts.items() if _column_of(text, source) is None}


@dataclass
class Outcome:
    """The clauses that apply to pairs of rows, or to rows of the source.

    Attributes:
        clause: the number of the clause for each pair; -1 if no clause applies.
        computed: for each clause, its new values by column. A value is null for a pair to which another clause applies.
    """

    clause: pa.Array
    computed: list[dict[str, pa.Array]]


@dataclass
class Clauses:
    """The clauses of one kind, matched or not matched. The first clause whose condition is true applies.

    Args:
        source, target: the columns of the two sides.
        limits: the declared limits of the target.

    Raises `InvalidArgument` for a value of a column that the table does not have.
    """

    clauses: Sequence[Clause]
    source: pa.Schema
    target: pa.Schema
    limits: Limits = field(default_factory=dict)
    _needs_sql: bool = field(init=False)

    def __post_init__(self) -> None:
        for clause in self.clauses:
            if unknown := [name for name in clause.values or {} if name not in self.target.names]:
                raise InvalidArgument(
                    f"the table has no column {', '.join(unknown)}; it has {', '.join(self.target.names)}"
                )
        self._needs_sql = any(one.condition is not None or one.computed(self.source) for one in self.clauses)

    def target_columns(self) -> list[str]:
        """The columns of the target that conditions and values may read."""
        if not self._needs_sql:
            return []
        with sandbox("merge", needs="a condition or value in SQL") as connection:
            named: set[str] = set()
            for text in self._texts():
                columns = _named_columns(connection, text)
                if columns is None:
                    return list(self.target.names)
                named |= columns
        lower = {name.lower() for name in named}
        names = zip(self.target.names, names_in_query(self.target.names), strict=True)
        return [name for name, in_query in names if in_query.lower() in lower]

    def outcome(self, source: pa.Table, target: pa.Table | None) -> Outcome:
        """Apply the clauses to each row of `source`, paired with the row of `target` at the same index, if given.

        Raises `InvalidArgument` for SQL that DuckDB cannot parse or evaluate.
        """
        rows = source.num_rows
        if not self.clauses:
            return Outcome(pa.repeat(pa.scalar(-1, pa.int32()), rows), [])
        if not self._needs_sql:
            return Outcome(pa.repeat(pa.scalar(0, pa.int32()), rows), [{} for _ in self.clauses])
        parts = [
            self._calculated(source.slice(start, _PAIRS), None if target is None else target.slice(start, _PAIRS))
            for start in range(0, max(rows, 1), _PAIRS)
        ]
        table = pa.concat_tables(parts)
        computed: list[dict[str, pa.Array]] = []
        for number, clause in enumerate(self.clauses):
            texts = clause.computed(self.source)
            computed.append({name: _typed(table[f"v{number}_{at}"].combine_chunks()) for at, name in enumerate(texts)})
        return Outcome(table["clause"].combine_chunks(), computed)

    def values(
        self, number: int, source: pa.Table, rows: np.ndarray, results: list[dict[str, pa.Array]], places: np.ndarray
    ) -> dict[str, pa.ChunkedArray | pa.Array]:
        """The values that a clause gives: of some rows of the source, and at some places of computed columns."""
        plain = self.clauses[number].plain(self.source, self.target)
        given = take_rows(source.select(list(dict.fromkeys(plain.values()))), rows)
        computed = results[number] if results else {}
        values = {name: given.column(column) for name, column in plain.items()}
        return values | {name: column.take(pa.array(places)) for name, column in computed.items()}

    def _texts(self) -> Iterator[str]:
        for clause in self.clauses:
            if clause.condition is not None:
                yield clause.condition
            yield from clause.computed(self.source).values()

    def _calculated(self, source: pa.Table, target: pa.Table | None) -> pa.Table:
        """For each pair, the number of its clause (`clause`) and the computed values of all clauses
        (`v<clause>_<number>`).
        """
        columns = {"i": pa.array(range(source.num_rows), pa.int64())}
        sides = {"source": source} if target is None else {"source": source, "target": target}
        structs = []
        for side, rows in sides.items():
            fields = []
            # Computed for all columns of the target together, because the name of one column depends on the others.
            known = (self.source if side == "source" else self.target).names
            names = dict(zip(known, names_in_query(known), strict=True))
            for number, name in enumerate(rows.column_names):
                columns[f"{side[0]}{number}"] = rows.column(number)
                fields.append(f"{quoted(names[name])} := {side[0]}{number}")
            structs.append(f"struct_pack({', '.join(fields)}) AS {side}" if fields else f"NULL AS {side}")
        # A condition that is null does not hold.
        cases = [
            f"WHEN coalesce(({one.condition if one.condition is not None else 'true'}), false) THEN {number}"
            for number, one in enumerate(self.clauses)
        ]
        clause = f"CASE {' '.join(cases)} ELSE -1 END"
        values = [
            f"CASE WHEN clause = {number} THEN ({text}) END AS v{number}_{at}"
            for number, one in enumerate(self.clauses)
            for at, text in enumerate(one.computed(self.source).values())
        ]
        picked = ", ".join(["i", "clause::INTEGER AS clause", *values])
        sql = (
            f"SELECT {picked} FROM (SELECT *, {clause} AS clause FROM "
            f"(SELECT i, {', '.join(structs)} FROM trinitylake_pairs)) ORDER BY i"
        )
        with sandbox("merge", needs="a condition or value in SQL", quotes_rows=True) as connection:
            connection.register("trinitylake_pairs", pa.table(columns))
            for text in self._texts():
                _parsed(connection, text)  # raises unless the text is one expression
            result: pa.Table = arrow_result(connection, sql).to_arrow_table()
        return result


def _typed(values: pa.Array) -> pa.Array:
    """Values of an expression. DuckDB returns NULL without a type as INTEGER; this becomes Arrow's type null."""
    return pa.nulls(len(values)) if values.null_count == len(values) and pa.types.is_int32(values.type) else values


def _column_of(text: str, source: pa.Schema) -> str | None:
    """The source column if the text only names it: `x` for `source.x`; None for any other text."""
    match = _PLAIN.fullmatch(text.strip())
    if match is None:
        return None
    name = match[1] or match[2].replace('""', '"')
    return name if name in source.names else None


def _parsed(connection: Any, text: str) -> Any:
    [(given,)] = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({text}\n)"]).fetchall()
    tree = json.loads(given)
    if tree["error"]:
        raise InvalidArgument(f"merge: {text!r}: {tree['error_message']}")
    if len(tree["statements"]) != 1 or len(tree["statements"][0]["node"].get("select_list", ())) != 1:
        raise InvalidArgument(f"merge: {text!r}: expected one expression")
    return tree


def _named_columns(connection: Any, text: str) -> set[str] | None:
    """The target columns that an expression reads; None if it may read any column."""
    named: set[str] = set()
    for node in nodes_of(_parsed(connection, text)):
        if node.get("class") == "STAR":
            return None
        if node.get("class") == "COLUMN_REF" and (names := node["column_names"])[0].lower() != "source":
            if names[0].lower() != "target" or len(names) < 2:
                return None
            named.add(names[1])
    return named
