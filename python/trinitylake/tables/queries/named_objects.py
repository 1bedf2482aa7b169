"""Resolves the names of a query in the lakehouse: tables, and views down to their tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from trinitylake.base.qualified_names import Identifier, full_name
from trinitylake.base.version_reference import is_number_or_tag
from trinitylake.errors import InvalidArgument, InvalidName, ObjectNotFound
from trinitylake.tables.queries import information_schema
from trinitylake.tables.queries.parsed_query import AtClause, Constants, Parsed, Reference, parsed, shortened
from trinitylake.tables.sql_sandbox import folded, quoted

if TYPE_CHECKING:
    from trinitylake.tables.queries.source import TableSource

#: Maximum number of characters of an unknown name that an error shows.
_SHOWN_LENGTH = 200
#: Prefix of DuckDB schemas for rows that are not objects of the lakehouse.
_OWN_SCHEMA = "trinitylake "
#: DuckDB's own schemas.
_RESERVED = frozenset({"information_schema", "pg_catalog"})
#: Names that DuckDB interprets as databases before a table name.
_DATABASES = frozenset({"main", "memory", "system", "temp"})


class StoredView(Protocol):
    """A view of the lakehouse."""

    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def default_namespace(self) -> str: ...
    @property
    def sql(self) -> str: ...
    def sql_for(self, dialect: str) -> str: ...


class Names(information_schema.Objects, Protocol):
    """A version or transaction in which names are looked up."""

    @property
    def _place(self) -> str:
        """Suffix for errors, such as " in version 14"; empty for the latest version and for transactions."""

    def _at(self, reference: str) -> Names:
        """A version of the same lakehouse."""

    def _kind(self, identifier: Identifier) -> Literal["namespace", "table", "view"] | None:
        """Kind of the object with that name."""

    def view(self, identifier: Identifier) -> StoredView:
        """A view."""

    def _similar_names(self, identifier: Identifier) -> Iterable[str]:
        """Full names that are similar to a name that does not exist."""


@dataclass
class NamedObject:
    """A table or view of a query, with its name in DuckDB.

    Attributes:
        of: the table, the SQL of the view with DuckDB's names, or the rows of a table of `information_schema`.
    """

    schema: str
    name: str
    of: TableSource | str | pa.Table

    @property
    def in_sql(self) -> str:
        """The quoted name for SQL, with the database."""
        return f"memory.{quoted(self.schema)}.{quoted(self.name)}"


NameOf: TypeAlias = tuple[str, str]


@dataclass
class NamedObjects:
    """All objects that a query names, in the order of their dependencies.

    Args:
        names: the version or transaction in which names are looked up.
        given: names without a namespace that refer to data of the caller.
        is_open: whether DuckDB resolves all other names without a namespace.
        allowing_option: the option that lets a query read external data, for errors. Views can never read such data.
        constants: computes the versions of AT clauses. AT clauses of views have no parameters.

    Attributes:
        column_names: the folded names of all columns that the query and its views name.
    """

    connection: Any
    names: Names
    given: Mapping[str, Any] = field(default_factory=dict)
    is_open: bool = False
    allowing_option: str = ""
    constants: Constants | None = None
    found: dict[NameOf, NamedObject] = field(default_factory=dict)
    depends_on_time: bool = False
    column_names: set[str] = field(default_factory=set)
    _open_views: list[str] = field(default_factory=list)
    _versions: dict[str, Names] = field(default_factory=dict)

    def resolve(self, sql: str, default_namespace: str = "", names: Names | None = None) -> Parsed:
        """Look up all names in a query, in `names` if given. Returns the query with DuckDB's names.

        Raises:
            ObjectNotFound: for an unknown name.
            InvalidArgument: for a query that is not allowed, a view that refers to itself, and names that DuckDB
                considers equal.
        """
        is_view = bool(self._open_views)
        is_open = self.is_open and not is_view
        query = parsed(self.connection, sql, is_open=is_open, allowing_option="" if is_view else self.allowing_option)
        self.depends_on_time |= query.depends_on_time
        self.column_names |= {folded(names[-1]) for names, _ in query.columns if names}
        renamed: dict[Reference, str | None] = {}
        for reference in query.references:
            catalog, schema, name = reference.parts
            namespace = full_name(catalog, schema) if catalog else schema
            if not namespace and not is_view and folded(name) in self.given:
                continue
            namespace = namespace or default_namespace
            if not namespace and not is_view and self.is_open:
                continue
            state = names or self.names
            one = self._provide(
                namespace, name, sql, state if reference.at is None else self._version(reference.at, sql)
            )
            is_plain = schema == one.schema and not catalog and folded(schema) not in _DATABASES
            renamed[reference] = None if is_plain else one.in_sql
        text = query.renamed(renamed.get)
        return query if text == sql else parsed(self.connection, text, is_open=is_open)

    def _version(self, at: AtClause, sql: str) -> Names:
        """The version that an AT clause names. Raises `InvalidArgument` for other values, and as `Lakehouse.at`."""
        constants = None if self._open_views else self.constants
        text = (constants or Constants(self.connection, {})).text(at.expression, sql)
        if is_number_or_tag(text) != (at.unit.upper() == "VERSION"):
            raise InvalidArgument(
                f"{shortened(sql)}: AT ({at.unit} => {text}): write AT (VERSION => 14) with a number or 'tag:NAME', or "
                "AT (TIMESTAMP => …) with a time or '2 hours ago'"
            )
        if (known := self._versions.get(text)) is None:
            known = self._versions[text] = self.names._at(text)
        return known

    def _provide(self, namespace: str, name: str, sql: str, names: Names) -> NamedObject:
        if not namespace:
            raise self._not_found("", name, sql, names)
        schema = namespace if names is self.names else f"{namespace}{names._place}"
        if (found := self.found.get((schema, name))) is not None:
            return found
        if folded(namespace) == information_schema.NAME:
            self.found[schema, name] = NamedObject(
                f"{_OWN_SCHEMA}{schema}", name, information_schema.rows_of(names, name)
            )
            return self.found[schema, name]
        identifier = namespace, name
        try:
            kind = names._kind(identifier)
        except InvalidName:
            kind = None
        if kind not in ("table", "view"):
            raise self._not_found(namespace, name, sql, names)
        self._refuse_alike(schema, name)
        if kind == "table":
            from trinitylake.tables.queries.source import TableSource

            of: TableSource | str = TableSource(names.table(identifier))
        else:
            of = self._text_of(names.view(identifier), names)
        self.found[schema, name] = NamedObject(schema, name, of)
        return self.found[schema, name]

    def _text_of(self, view: StoredView, names: Names) -> str:
        if view.name in self._open_views:
            raise InvalidArgument(f"view {view.name} refers to itself")
        try:
            sql = view.sql_for("duckdb")
        except ObjectNotFound:
            sql = view.sql
        self._open_views.append(view.name)
        try:
            return self.resolve(sql, view.default_namespace or view.namespace, names).sql.rstrip("; \n\t\r")
        except (InvalidArgument, ObjectNotFound) as error:
            if str(error).startswith("view "):
                raise
            raise type(error)(f"view {view.name}: {error}") from None
        finally:
            self._open_views.pop()

    def _refuse_alike(self, namespace: str, name: str) -> None:
        if folded(namespace) in _RESERVED:
            raise InvalidArgument(
                f"SQL cannot name tables of namespace {namespace}, because DuckDB reserves that name: "
                "read them with scan()"
            )
        key = folded(namespace), folded(name)
        for other in self.found:
            if (folded(other[0]), folded(other[1])) == key:
                raise InvalidArgument(
                    f"{full_name(*other)} and {full_name(namespace, name)} are one name for DuckDB, which ignores "
                    "case: read them in separate queries"
                )

    def _not_found(self, namespace: str, name: str, sql: str, names: Names) -> ObjectNotFound:
        wanted = full_name(namespace, name) if namespace else name
        candidates = list(names._similar_names((namespace, name)))
        small = {one.lower(): one for one in candidates}
        near = difflib.get_close_matches(wanted.lower(), small, n=3, cutoff=0.6)
        same = [one for one in candidates if one.rpartition(".")[2].lower() == name.lower()]
        meant = list(dict.fromkeys([*same[:3], *(small[one] for one in near)]))[:3]
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        place = "" if namespace else ": no table or view has a name without a namespace"
        if not namespace and self.allowing_option and not self._open_views and ("." in name or "/" in name):
            hint = f"; {self.allowing_option} lets queries read files"
        shown = wanted if len(wanted) <= _SHOWN_LENGTH else f"{wanted[:_SHOWN_LENGTH]}…"
        return ObjectNotFound(f"{shortened(sql)}: there is no table or view {shown}{place or names._place}{hint}")
