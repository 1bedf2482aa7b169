"""A prepared query: the objects that it names, its columns, and the filters on each table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.information_schema import query_of_show
from trinitylake.tables.queries.named_objects import NamedObjects, NameOf, Names
from trinitylake.tables.queries.parsed_query import (
    Constants,
    Parameters,
    Parsed,
    by_name,
    in_sql,
    names_in,
    numbered,
    replaced,
    shortened,
    tree_of,
)
from trinitylake.tables.queries.rewritten_statements import with_change_feeds, with_pivot_values
from trinitylake.tables.queries.running import RunningQuery, planning
from trinitylake.tables.queries.statement_text import split_explain
from trinitylake.tables.queries.tokens import first_word
from trinitylake.tables.sql_sandbox import connect, folded, quoted, refusals, unfiltered

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from trinitylake.tables.queries.pushed_filters import Pushed
    from trinitylake.tables.queries.source import PlannedRows, TableSource

NEEDS = "SQL over a lakehouse"
#: Prefix of the names that this module adds to a query.
OWN_NAME = "trinitylake_"
_DESCRIBE = "DESCRIBE "
#: Types that only DuckDB has. It exports them to Arrow as bytes, without zone, or as months, days and nanoseconds.
_TYPES_OF_DUCKDB = frozenset({"BIGNUM", "BIT", "INTERVAL", "TIME WITH TIME ZONE"})
#: A quoted name of a field, or a type that DuckDB exports to Arrow with other values. A space follows names of fields.
_LOST_IN_ARROW = re.compile(r'"(?:[^"]|"")*"|\b(BIGNUM|BIT|TIME WITH TIME ZONE|UHUGEINT)(?=[,)[]|$)')
_QUOTED_LINE = "LINE 1: "


def _shown_cast(type: str) -> str:
    return "::VARCHAR" if type in _TYPES_OF_DUCKDB else ""


def _arrow_cast(name: str, type: str) -> str:
    """Cast of a column for Arrow; "" for none. DuckDB exports a UHUGEINT of 2^127 or more as a negative number."""
    lost = {found[1] for found in _LOST_IN_ARROW.finditer(type) if found[1]}
    if not lost:
        return ""
    if lost == {"UHUGEINT"}:
        return "::" + _LOST_IN_ARROW.sub(lambda found: "DECIMAL(38, 0)" if found[1] else found[0], type)
    raise InvalidArgument(
        f"column {name!r} of the query has the type {type}, which Arrow does not have: cast it, for example to text"
    )


@dataclass(frozen=True)
class QueryLimits:
    """Limits of one query in DuckDB. `memory_size_bytes` limits its memory, and the size of its temporary files."""

    memory_size_bytes: int

    @property
    def settings(self) -> dict[str, str | bool | int | float | list[str]]:
        """Settings for a DuckDB connection."""
        size = f"{self.memory_size_bytes}B"
        return {"memory_limit": size, "max_temp_directory_size": size, "threads": 2}


@dataclass(frozen=True)
class QueryOptions:
    """Options and limits of a query.

    Attributes:
        parameters: values for `?` or `$name`.
        given: data that the query may name without a namespace: Arrow tables or datasets.
        is_open: whether the query may read data outside of the lakehouse.
        allowing_option: the option that would allow a refused query, for the error; empty if there is none.
        quotes_rows: whether errors may show DuckDB's messages, which quote values of rows.
        subject: name of the query in errors, instead of its SQL.
        default_namespace: namespace of names without one.
        is_part: whether the query is a part of a statement, which may need only some of the parameters.
        limits: limits of memory and threads; None for DuckDB's defaults.
    """

    parameters: Parameters = None
    given: Mapping[str, Any] | None = None
    is_open: bool = False
    allowing_option: str = ""
    quotes_rows: bool = True
    subject: str = ""
    default_namespace: str = ""
    is_part: bool = False
    limits: QueryLimits | None = None


class PreparedQuery:
    """A query over tables as they were when it was prepared.

    Attributes:
        columns: name and DuckDB's type of each column, in order.
        explain: EXPLAIN and its options before the query, or "".

    Raises `InvalidArgument` and `ObjectNotFound` for a query that cannot run.
    """

    def __init__(self, sql: str, names: Names, options: QueryOptions) -> None:
        self._options = options
        self.subject = options.subject or f"query {shortened(sql)}"
        self._given = {folded(name): rows for name, rows in (options.given or {}).items()}
        with planning(NEEDS, is_open=options.is_open) as connection, self._refusals():
            self.explain, sql = split_explain(sql)
            if first_word(sql) in ("SHOW", "DESCRIBE", "DESC"):
                sql = query_of_show(connection, sql, options.default_namespace) or sql
            part = replace(options, is_part=True, subject=self.subject)
            sql = with_pivot_values(sql, lambda query: _texts(PreparedQuery(query, names, part)))
            values = by_name(options.parameters)
            constants = Constants(connection, values)
            if values and not isinstance(options.parameters, Mapping):
                sql = numbered(sql)
            sql, feeds = with_change_feeds(connection, sql, names, options.default_namespace, constants)
            self._given |= feeds
            objects = NamedObjects(connection, names, self._given, options.is_open, options.allowing_option, constants)
            query = objects.resolve(sql, options.default_namespace)
            self.sql = query.sql
            needed = set(names_in(query.tree))
            unneeded = (set(values) if options.is_part else constants.used) - needed
            self._parameters = {name: value for name, value in values.items() if name not in unneeded}
            self._objects = list(objects.found.values())
            for table in self._tables().values():
                table.add_lineage(objects.column_names)
            if options.is_open:
                self._confine_views()
            self._create(connection, {})
            self.columns = self._bound(connection, query)
            self._pushed = self._pushed_of(connection, query, objects.depends_on_time)
            if self.explain:
                self.sql = f"{self.explain} {self.sql}"
                self.columns = [("explain_key", "VARCHAR"), ("explain_value", "VARCHAR")]

    def filter_of(self, table: NameOf) -> BooleanExpression:
        """Filter that matches all rows that the query reads from a table, given by namespace and name."""
        from pyiceberg.expressions import AlwaysTrue

        return self._pushed[table].filter if table in self._pushed else AlwaysTrue()

    @contextmanager
    def running(self, *, exports: Literal["arrow", "python", "text"] = "arrow") -> Iterator[RunningQuery]:
        """Context manager: run the query. Errors are raised at the start and while its rows are read.

        Columns with types that only DuckDB has become strings in `text`. For `arrow` they raise `InvalidArgument`, as
        does an unsigned integer with more than 38 digits.
        """
        planned = {name: table.planned(self._pushed.get(name)) for name, table in self._tables().items()}
        files = [path for rows in planned.values() for path in rows.files]
        with TemporaryDirectory(prefix="trinitylake-sql-", ignore_cleanup_errors=True) as folder:
            spill = str(Path(folder) / "spilled")
            limits = self._options.limits
            settings = None if limits is None else limits.settings
            is_open = self._options.is_open
            connection = connect(needs=NEEDS, files=files, spill_folder=spill, is_open=is_open, limits=settings)
            try:
                with self._refusals(planned):
                    self._create(connection, planned)
                    yield RunningQuery(connection, self._converted(exports), self._parameters)
            finally:
                connection.close()

    def _converted(self, exports: Literal["arrow", "python", "text"]) -> str:
        """The query with casts of columns whose types Arrow lacks."""
        if exports == "python":
            return self.sql
        casts = [_shown_cast(type) if exports == "text" else _arrow_cast(name, type) for name, type in self.columns]
        if not any(casts):
            return self.sql
        places = [f"c{place}" for place in range(len(self.columns))]
        names = [quoted(name) for name, _ in self.columns]
        cast = [f"{place}{cast} AS {name}" for place, cast, name in zip(places, casts, names, strict=True)]
        query = self.sql.rstrip("; \n\t\r")
        return f"SELECT {', '.join(cast)} FROM ({query}\n) AS {OWN_NAME}cast({', '.join(places)})"

    @contextmanager
    def _refusals(self, planned: Mapping[NameOf, PlannedRows] | None = None) -> Iterator[None]:
        try:
            options = self._options  # a part of a statement is not the text of the caller
            with refusals(self.subject, quotes_rows=options.quotes_rows, quotes_text=not options.is_part):
                yield
        except InvalidArgument:
            for rows in (planned or {}).values():
                rows.raise_if_broken()
            for given in self._given.values():
                if (failure := getattr(given, "failure", None)) is not None:  # of `ArrowRows`
                    raise failure from None
            raise

    def _tables(self) -> dict[NameOf, TableSource]:
        return {(one.schema, one.name): one.of for one in self._objects if not isinstance(one.of, str | pa.Table)}

    def _create(self, connection: Any, planned: Mapping[NameOf, PlannedRows]) -> None:
        """Create all objects of the query: tables without rows, or with their planned rows."""
        for number, (name, given) in enumerate(self._given.items()):
            if name.startswith(OWN_NAME):  # rows of the changed table, which need no conversion
                connection.register(name, given)
                continue
            rows = given
            if isinstance(given, pa.Table):
                from trinitylake.tables.queries.source import table_in_duckdb

                rows = table_in_duckdb(given, repr(name))
            connection.register(f"{OWN_NAME}given{number}", rows)
            values = unfiltered("COLUMNS(*)")
            connection.execute(f"CREATE TEMP VIEW {quoted(name)} AS SELECT {values} FROM {OWN_NAME}given{number}")
        for schema in {folded(one.schema): one.schema for one in self._objects}.values():
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS memory.{quoted(schema)}")
        for number, one in enumerate(self._objects):
            if isinstance(one.of, str):
                connection.execute(f"CREATE VIEW {one.in_sql} AS {one.of}")
            elif isinstance(one.of, pa.Table):
                connection.register(f"{OWN_NAME}{number}", one.of)
                connection.execute(f"CREATE VIEW {one.in_sql} AS FROM temp.main.{OWN_NAME}{number}")
            elif (rows := planned.get((one.schema, one.name))) is None:
                connection.execute(f"CREATE TABLE {one.in_sql} ({one.of.column_definitions()})")
            else:
                registered = f"{OWN_NAME}{number}"
                if rows.scanned is not None:
                    connection.register(registered, rows.scanned)
                text = one.of.rows(rows, f"temp.main.{quoted(registered)}")
                connection.execute(f"CREATE VIEW {one.in_sql} AS {text}")

    def _confine_views(self) -> None:
        """Bind the views on a connection without access to files, so that DuckDB resolves the names in them."""
        connection = connect(needs=NEEDS)
        try:
            self._create(connection, {})
        finally:
            connection.close()

    def _bound(self, connection: Any, query: Parsed) -> list[tuple[str, str]]:
        import duckdb

        text = query.sql.rstrip("; \n\t\r")
        described = f"DESCRIBE FROM ({text}\n)" if query.is_description else f"{_DESCRIBE}{text}"
        parameters = self._parameters
        try:
            rows = RunningQuery(connection, described, parameters).fetchall()
        except duckdb.Error as error:
            raise type(error)(_of_the_query(str(error))) from None
        return [(name, type) for name, type, *_ in rows]

    def _pushed_of(self, connection: Any, query: Parsed, depends_on_time: bool) -> dict[NameOf, Pushed]:
        """The filters that DuckDB pushes down to the tables."""
        tables = self._tables()
        if not tables or (text := self._with_values(connection, query)) is None:
            return {}
        from pyiceberg.expressions import AlwaysTrue

        from trinitylake.tables.queries.pushed_filters import Pushed, pushed_filters

        [(plan,)] = connection.execute("SELECT json_serialize_plan(?, optimize := true)", [text]).fetchall()
        columns = {name: table.columns for name, table in tables.items()}
        pushed = pushed_filters(plan, columns)
        if depends_on_time:  # the filters of the plan contain the time of planning
            return {name: Pushed(AlwaysTrue(), one.matched_by_nan) for name, one in pushed.items()}
        return pushed

    def _with_values(self, connection: Any, query: Parsed) -> str | None:
        """The text with literals instead of parameters, for a plan; None if a value has no literal."""
        if not self._parameters:
            return query.sql
        values: dict[str, Any] = {}
        for name, value in self._parameters.items():
            if (text := in_sql(value)) is None:
                return None
            (one,) = tree_of(connection, f"SELECT {text}")["statements"][0]["node"]["select_list"]
            values[name.lower()] = one
        tree = replaced(query.tree, values)
        [(text,)] = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchall()
        return str(text)


def _texts(query: PreparedQuery) -> list[str | None]:
    with query.running() as result:
        return [text for (text,) in result.fetchall()]


def _of_the_query(message: str) -> str:
    """DuckDB's error about a query, without the DESCRIBE that this module added."""
    before, quoted_line, after = message.partition(f"{_QUOTED_LINE}{_DESCRIBE}")
    if not quoted_line:
        return message
    line, _, pointer = after.partition("\n")
    return f"{before}{_QUOTED_LINE}{line}\n{pointer.removeprefix(' ' * len(_DESCRIBE))}"
