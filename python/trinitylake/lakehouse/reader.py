"""Methods for reading the catalog: in the latest version, in a fixed version (`at(...)`) and in a transaction.

Identifiers are strings such as `"nyc.flights"` or tuples (`qualified_names.py`). Returned names are full names, sorted
bytewise. Every method raises `InvalidName` for a name that is not valid or too long for a key (format §4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from trinitylake.base.arguments import checked_as, mapping
from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.foreign_errors import errors_as
from trinitylake.base.markup import Markup, listed
from trinitylake.base.qualified_names import Identifier, check_text, full_name, namespace_name, split
from trinitylake.errors import CorruptFile, InvalidArgument, InvalidName, ObjectNotFound
from trinitylake.lakehouse.namespace import Namespace
from trinitylake.lakehouse.view import View

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.base.version_reference import VersionReference
    from trinitylake.lakehouse.asynchronous import Steps
    from trinitylake.tables.queries.prepared import QueryOptions
    from trinitylake.tables.queries.query import Query
    from trinitylake.tables.table import Table


#: Names of objects that an html repr shows.
SHOWN_NAMES = 20

Kind: TypeAlias = Literal["namespace", "table", "view"]

#: Maximum number of namespaces in which similar names are searched if a name does not exist.
_HINT_NAMESPACES = 100


class Reader(ABC):
    """The reading methods that `Lakehouse`, `LakehouseVersion` and `Transaction` share."""

    __slots__ = ()

    @property
    @abstractmethod
    def _storage(self) -> _core.Storage:
        """The files of the lakehouse."""

    @abstractmethod
    def _state(self) -> _core.Version | _core.Transaction:
        """The version or open transaction of the core that the next method reads."""

    @abstractmethod
    def _table(self, namespace: str, name: str, definition: bytes, state: _core.Version | _core.Transaction) -> Table:
        """The table with this definition in `state`."""

    def exists(self, identifier: Identifier) -> bool:
        """Whether a namespace, table or view with this name exists."""
        return self._kind(identifier) is not None

    def _kind(self, identifier: Identifier) -> Kind | None:
        """Kind of the object with this name: "table", "view" or "namespace"; None if no object has the name."""
        state = self._state()
        check_text(identifier)
        if isinstance(identifier, str):
            namespace, _, name = identifier.rpartition(".")
        else:
            namespace, name = ".".join(identifier[:-1]), identifier[-1]
            identifier = f"{namespace}.{name}" if namespace else name
        if namespace:
            if self._has_table(namespace, name):
                return "table"
            if state.exists("view", namespace, name):
                return "view"
        return "namespace" if state.exists("namespace", identifier) else None

    def _has_table(self, namespace: str, name: str) -> bool:
        return self._state().exists("table", namespace, name)

    def namespaces(self, parent: Identifier | None = None) -> list[str]:
        """Full names of all namespaces, or of the namespaces below `parent` at any depth.

        Raises `ObjectNotFound` if neither the namespace `parent` nor anything below it exists.
        """
        state = self._state()
        above = None if parent is None else namespace_name(parent)
        names = [name for name, _ in state.names("namespace", above)]
        if above is not None and not names and not state.exists("namespace", above):
            raise ObjectNotFound(f"namespace {above} does not exist{self._place}")
        return names

    def namespace(self, identifier: Identifier) -> Namespace:
        """A namespace and its properties. Raises `ObjectNotFound`."""
        from trinitylake.definitions import parse_namespace_def

        name = namespace_name(identifier)
        with self._located("namespace", name):
            definition = parse_namespace_def(self._read_definition("namespace", name))
        return Namespace(name, definition.id, dict(definition.properties))

    def tables(self, namespace: Identifier | None = None) -> list[str]:
        """Full names of all tables, or of tables directly in `namespace`. Raises `ObjectNotFound` for the namespace."""
        return self._names("table", namespace)

    def views(self, namespace: Identifier | None = None) -> list[str]:
        """Full names of all views, or of views directly in `namespace`. Raises `ObjectNotFound` for the namespace."""
        return self._names("view", namespace)

    def table(self, identifier: Identifier) -> Table:
        """The table with this name. Raises `ObjectNotFound`."""
        namespace, name = split(identifier)
        with self._located("table", namespace, name):
            state = self._state_for("table", namespace, name)
            return self._table(namespace, name, _definition_in(state, "table", namespace, name, self._place), state)

    def view(self, identifier: Identifier) -> View:
        """The view with this name. Raises `ObjectNotFound`."""
        from trinitylake.definitions import parse_view_def

        namespace, name = split(identifier)
        with self._located("view", namespace, name):
            return View(namespace, name, parse_view_def(self._read_definition("view", namespace, name)))

    @property
    def aio(self) -> Steps:
        """Methods for asyncio: `await lake.aio.table("nyc.flights").scan("delay > 60").to_arrow()`.

        Names and calls are chained as in synchronous code; `await` runs the chain in a thread, `async for` iterates
        over its result, and `async with lake.aio.transaction() as txn` commits or rolls back at the end of the block.
        """
        from trinitylake.lakehouse.asynchronous import Steps, ThreadRunner

        return Steps(lambda: self, ThreadRunner())

    @checked_as(data=mapping)
    def sql(
        self,
        query: str,
        parameters: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        default_namespace: str = "",
        allow_external: bool = False,
        message: str = "",
        author: str = "",
    ) -> Query:
        """Run a statement in DuckDB's SQL over tables and views by name: `SELECT … FROM nyc.flights`.

        Needs DuckDB, `pip install 'trinitylake[sql]'`. Names are case-sensitive. Names that are not SQL identifiers are
        written in double quotes, and a nested namespace in one pair of quotes: `"a.b.c".t`. If a view has SQL in
        several dialects, its SQL for DuckDB is run, or else the first one.

        Args:
            query: one statement. A query runs when its rows are read; `AT (VERSION => 14)` after a table reads another
                version. A transaction and a lakehouse also run INSERT, UPDATE, DELETE, MERGE, CREATE, ALTER, COMMENT
                and DROP, immediately; a lakehouse commits each of them. Their result is one row with the numbers of
                changed rows and the version.
            parameters: values for `?` in order, or for `$name` by name.
            default_namespace: the namespace of names that are written without a namespace.
            data: rows that the query can read under a name without a namespace, in the forms that `append` accepts:
                `{"new": frame}`.
            allow_external: whether the query may read files, URLs and everything else that DuckDB can read. Otherwise
                it can read only the lakehouse and `data`. It never reads variables of the program.
            message: stored in the log if the statement writes outside of a transaction.
            author: stored in the log if the statement writes outside of a transaction.

        Raises:
            ObjectNotFound: a table or view does not exist.
            InvalidArgument: DuckDB cannot parse the SQL, or the SQL has an operation that is not allowed.
        """
        from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions
        from trinitylake.tables.queries.query import Query

        given = {}
        if data:
            from trinitylake.tables.input_rows import read_all, without_views

            given = {name: without_views(read_all(rows)) for name, rows in data.items()}
        options = QueryOptions(parameters, given, allow_external, "allow_external", default_namespace=default_namespace)
        if (written := self._write(query, options, CommitInfo(message, author))) is not None:
            return written
        return Query(PreparedQuery(query, self._at_one_moment(), options))

    def _write(self, query: str, options: QueryOptions, note: CommitInfo) -> Query | None:
        """Run a writing statement; None for other statements. Raises `InvalidArgument` if this reader cannot write."""
        from trinitylake.lakehouse.sql_kinds import writing_statement

        if writing_statement(query) is None:
            return None
        raise InvalidArgument("a version is read-only: write in a transaction, or on the lakehouse")

    @property
    def _place(self) -> str:
        """Suffix of error messages, such as " in version 14"; empty for the latest version and for transactions."""
        return ""

    @abstractmethod
    def _at(self, reference: VersionReference) -> Reader:
        """A version of the same lakehouse. Raises as `Lakehouse.at` does."""

    def _at_one_moment(self) -> Reader:
        return self

    def _similar_names(self, identifier: Identifier) -> list[str]:
        """Full names of tables and views that are similar to a name that does not exist."""
        check_text(identifier)
        parts = tuple(identifier.rpartition(".")[::2]) if isinstance(identifier, str) else identifier
        namespace, name = ".".join(parts[:-1]), parts[-1]
        state = self._state()
        version = cast("_core.Version", getattr(state, "base", state))  # a search for a hint must not count as a read
        found: list[str] = []
        kinds: tuple[Literal["table", "view"], ...] = "table", "view"
        with suppress(InvalidName):
            if namespace and version.exists("namespace", namespace):
                return [f"{namespace}.{one}" for kind in kinds for one in version.list(kind, namespace)[1].to_pylist()]
            for one in version.list("namespace", None)[0].to_pylist()[:_HINT_NAMESPACES]:
                found += [f"{one}.{name}" for kind in kinds if version.exists(kind, one, name)]
        return found

    def _names(self, kind: Literal["table", "view"], within: Identifier | None) -> list[str]:
        state = self._state()
        namespace = None if within is None else namespace_name(within)
        names = state.names(kind, namespace)
        if namespace is not None and not names and not state.exists("namespace", namespace):
            raise ObjectNotFound(f"namespace {namespace} does not exist{self._place}")
        return [f"{one}.{name}" for one, name in names]

    def _read_definition(self, kind: Kind, namespace: str, name: str = "") -> bytes:
        """The bytes of an object's definition file (format §6). Raises `ObjectNotFound`."""
        return _definition_in(self._state_for(kind, namespace, name), kind, namespace, name, self._place)

    def _state_for(self, kind: Kind, namespace: str, name: str) -> _core.Version | _core.Transaction:
        """Like `_state`, for reading the definition of one object."""
        return self._state()

    def _located(self, kind: Kind, namespace: str, name: str = "") -> errors_as:
        """Context manager that adds the path of the object's definition file to a `CorruptFile` without a path."""

        def with_path(error: Exception) -> Exception | None:
            if not isinstance(error, CorruptFile) or error.path:
                return None
            state = self._state()
            # Files that the transaction itself wrote are intact, so a damaged file belongs to its base version.
            version = cast("_core.Version", getattr(state, "base", state))
            path = version.locate(kind, namespace, name)
            return CorruptFile(f"{path}: {error}", path=path) if path else None

        return errors_as(with_path)


def first_names(state: _core.Version | _core.Transaction, kind: Kind) -> Markup:
    """The first names of objects of one kind, for an html repr. Reads only the leaves that contain them."""
    rows = state.list(kind, None, SHOWN_NAMES + 1)
    columns = [column.to_pylist() for column in rows.columns]
    names = [".".join(parts) for parts in zip(*columns[: 1 if kind == "namespace" else 2], strict=True)]
    return listed(names[:SHOWN_NAMES], len(names) > SHOWN_NAMES)


def _definition_in(
    state: _core.Version | _core.Transaction, kind: Kind, namespace: str, name: str, place: str
) -> bytes:
    definition = state.read(kind, namespace, name)
    if definition is None and kind == "namespace":
        raise ObjectNotFound(f"namespace {namespace} does not exist{place}")
    if definition is None:
        other: Literal["table", "view"] = "view" if kind == "table" else "table"
        hint = f", but there is a {other} of that name" if state.exists(other, namespace, name) else ""
        raise ObjectNotFound(f"{kind} {full_name(namespace, name)} does not exist{place}{hint}")
    return definition
