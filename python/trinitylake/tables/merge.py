"""Builder of a MERGE: clauses in order, then `execute`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias, TypeVar, cast

from trinitylake.base.arguments import text, texts
from trinitylake.errors import InvalidArgument
from trinitylake.tables.merging.clauses import Action, Clause
from trinitylake.tables.sql_sandbox import quoted

#: New values of a row: SQL by column, or names of columns that are taken from the source. None for all common columns.
Values: TypeAlias = "Mapping[str, str] | Iterable[str] | None"
Result = TypeVar("Result")


class _Committed:
    """Base of result tuples, which adds the version of the commit as an attribute.

    Attributes:
        version: None if the statement changed nothing, or inside a transaction, which commits later.
    """

    version: int | None = None

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, version={self.version})"


class _WriteNumbers(NamedTuple):
    rows_updated: int
    rows_deleted: int
    rows_inserted: int


class WriteResult(_Committed, _WriteNumbers):
    """How many rows a statement updated, deleted and inserted; `version` is the version of its commit."""


class _UpsertNumbers(NamedTuple):
    rows_updated: int
    rows_inserted: int


class UpsertResult(_Committed, _UpsertNumbers):
    """How many rows an upsert updated and inserted; `version` is the version of its commit."""


def committed(result: Result, version: int | None, base_version: int | None = None) -> Result:
    """Add the version of its commit to the result of a statement, if the transaction wrote something."""
    if not isinstance(result, WriteResult | UpsertResult) or version == base_version:
        return result
    done = type(result)(*result)
    done.version = version
    return cast("Result", done)


class Merge:
    """Builder of a merge, from `table.merge(…)`, with clauses for matched and for not matched rows of the data.

    Conditions and values are SQL as DuckDB reads it, with the columns of the data as `source.…` and those of the table
    as `target.…`. They need DuckDB, `pip install 'trinitylake[sql]'`, unless values only name columns, `source.x`.
    """

    def __init__(self, run: Callable[[Sequence[Clause], Sequence[Clause]], WriteResult]) -> None:
        self._run = run
        self._matched: list[Clause] = []
        self._not_matched: list[Clause] = []
        self._has_clauses = False
        self._is_executed = False

    def when_matched_update(self, set: Values = None, *, condition: str | None = None) -> Self:
        """Update the rows of the table that match a row of the data.

        Args:
            set: SQL for each column that changes, such as `{"n": "target.n + source.n"}`, or the names of columns that
                are taken from the data; by default all columns that both have.
            condition: SQL, such as `"source.at > target.at"`. The first clause whose condition is true is applied.

        Raises `InvalidArgument` for a clause after one without a condition, which would never be reached.
        """
        return self._add(self._matched, "update", set, condition)

    def when_matched_delete(self, *, condition: str | None = None) -> Self:
        """Delete the matched rows. `condition` and errors are as for `when_matched_update`."""
        return self._add(self._matched, "delete", None, condition)

    def when_not_matched_insert(self, values: Values = None, *, condition: str | None = None) -> Self:
        """Insert the rows of the data that match no row of the table.

        Args:
            values: SQL for each column, with columns of `source` only, or the names of columns that are taken from the
                data; by default all columns that both have. Other columns get their default, or null.
            condition: SQL with columns of `source` only.

        Raises `InvalidArgument` as `when_matched_update` does.
        """
        return self._add(self._not_matched, "insert", values, condition)

    def execute(self) -> WriteResult:
        """Run the merge, as one statement. Rows with a null in their key match nothing, as in SQL.

        Raises:
            InvalidArgument: if more than one row of the data would change the same row of the table; for invalid keys,
                columns and SQL; for values that do not fit; for a merge that was executed before.
            CommitConflict: outside of a transaction, if other writers changed the same rows during each attempt.
        """
        if not self._has_clauses:
            raise InvalidArgument(
                "the merge has no clause: add one, such as .when_matched_update() or .when_not_matched_insert()"
            )
        if self._is_executed:
            raise InvalidArgument("the merge was executed already: begin another one")
        self._is_executed = True
        return self._run(self._matched, self._not_matched)

    def _add(self, clauses: list[Clause], action: Action, values: Values, condition: str | None) -> Self:
        if clauses and clauses[-1].condition is None:
            raise InvalidArgument(
                f"the {action} is never reached, because the clause before it has no condition: change their order"
            )
        if condition is not None:
            condition = text(condition, "condition")
        clauses.append(Clause(action, condition, _values(values)))
        self._has_clauses = True
        return self


def _values(given: Values) -> Mapping[str, str] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {text(name, "name of a column"): text(value, f"value of {name}") for name, value in given.items()}
    return {name: f"source.{quoted(name)}" for name in texts(given, "columns")}
