"""The writing methods: every statement that changes the catalog.

A statement of a transaction is part of the transaction; a statement of the lakehouse has its own transaction, which
commits at once. A statement raises `ObjectNotFound`, `ObjectAlreadyExists`, `NamespaceNotEmpty` and `InvalidName`
according to the state that its transaction sees. The commit raises `CommitConflict` if another writer has changed the
same objects first (format §8).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, TypeVar, Unpack

from trinitylake.base.arguments import checked, checked_as, table_properties, text_mapping, texts
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.properties import OWN_PROPERTY_PREFIX, change_properties
from trinitylake.base.qualified_names import Identifier, full_name, namespace_name, split
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.namespace import Namespace
from trinitylake.lakehouse.reader import Reader
from trinitylake.lakehouse.settings import Settings, apply_settings
from trinitylake.lakehouse.view import View

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.sorting import SortOrder

    from trinitylake import _core
    from trinitylake.definitions import SchemaLike
    from trinitylake.tables.queries.prepared import QueryOptions
    from trinitylake.tables.queries.query import Query
    from trinitylake.tables.staged_tables import StagedTables
    from trinitylake.tables.table import Table

Result = TypeVar("Result")


class Statements(Reader):
    """Statements over namespaces, tables and views.

    `message` and `author` of every method are stored in the log. They are only for statements outside of a transaction.
    """

    __slots__ = ()

    @abstractmethod
    def _execute(
        self,
        statement: Callable[[OpenTransaction], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: _core.Version | None = None,
    ) -> Result:
        """Run a statement: in this transaction, or in its own transaction that commits when the statement ends.

        Args:
            statement: the statement; it runs again on a newer version if the commit of its own transaction conflicts.
            note: commit message and author for the log.
            base: version on which the statement's own transaction begins, to save a request for the latest version.
                Only for a statement that writes: its commit finds conflicts with later versions, while a read would
                return old rows. If the statement fails, and `base` is no longer the latest version, the statement runs
                again on the latest version.

        Raises `InvalidArgument` for a note within a transaction, because the transaction has its own message and
        author.
        """

    @abstractmethod
    def _recent_version(self) -> _core.Version | None:
        """The version that was the latest a few seconds ago, for the argument `base` of `_execute`; None if unknown."""

    @abstractmethod
    def _afterwards(self, namespace: str, name: str, table: Table) -> Table:
        """Convert a table that a statement of `_execute` has returned to a table for use after the statement."""

    def _write(self, query: str, options: QueryOptions, note: CommitInfo) -> Query | None:
        from trinitylake.lakehouse.sql_kinds import writing_statement
        from trinitylake.tables.queries.parsed_query import by_name, shortened

        if (statement := writing_statement(query)) is None:
            return None
        from trinitylake.lakehouse.sql_statements import SqlStatements, StatementDone

        parts = replace(
            options, parameters=by_name(options.parameters), subject=f"statement {shortened(query)}", is_part=True
        )
        done, transaction = self._execute(
            lambda transaction: (SqlStatements(transaction, parts).run(statement), transaction), note
        )
        return StatementDone(self, done, transaction.version, transaction.base_version)

    # Namespaces

    @checked
    def create_namespace(
        self,
        identifier: Identifier,
        properties: Mapping[str, str] | None = None,
        *,
        exist_ok: bool = False,
        message: str = "",
        author: str = "",
    ) -> Namespace:
        """Create a namespace. The parents of a nested namespace need not exist.

        Raises `ObjectAlreadyExists` unless `exist_ok`; with `exist_ok`, an existing namespace is returned unchanged.
        """
        name, note = namespace_name(identifier), CommitInfo(message, author)
        from trinitylake.definitions import new_namespace_def, serialize

        definition = new_namespace_def(None, properties)
        data, made = serialize(definition), Namespace(name, definition.id, dict(properties or {}))

        def create(transaction: OpenTransaction) -> Namespace:
            core = transaction._state()
            if exist_ok and core.exists("namespace", name):
                return transaction.namespace(name)
            core.create("namespace", name, "", data)
            return made

        return self._execute(create, note, None if exist_ok else self._recent_version())

    @checked
    def alter_namespace(
        self,
        identifier: Identifier,
        properties: Mapping[str, str] | None = None,
        *,
        remove_properties: Iterable[str] = (),
        message: str = "",
        author: str = "",
    ) -> Namespace:
        """Set and remove properties of a namespace; the other properties do not change. Raises `ObjectNotFound`."""
        from trinitylake.definitions import parse_namespace_def, serialize

        name, removed = namespace_name(identifier), list(remove_properties)

        def alter(transaction: OpenTransaction) -> Namespace:
            with transaction._located("namespace", name):
                definition = parse_namespace_def(transaction._read_definition("namespace", name))
                change_properties(definition.properties, properties, removed)
            transaction._state().replace("namespace", name, "", serialize(definition))
            return Namespace(name, definition.id, dict(definition.properties))

        return self._execute(alter, CommitInfo(message, author), self._recent_version())

    @checked
    def drop_namespace(
        self,
        identifier: Identifier,
        *,
        cascade: bool = False,
        missing_ok: bool = False,
        message: str = "",
        author: str = "",
    ) -> None:
        """Drop a namespace, with `cascade` together with its tables, views and nested namespaces.

        Raises `NamespaceNotEmpty` without `cascade`, and `ObjectNotFound` unless `missing_ok`.
        """
        name = namespace_name(identifier)

        def statement(transaction: OpenTransaction) -> None:
            core = transaction._state()
            if missing_ok and not core.exists("namespace", name):
                return
            if cascade and core.exists("namespace", name):
                for one in [*reversed(transaction.namespaces(name)), name]:
                    for table in core.list("table", one).column(1).to_pylist():
                        transaction.drop_table((one, table))
                    for view in core.list("view", one).column(1).to_pylist():
                        core.drop("view", one, view)
                    if one != name:
                        core.drop("namespace", one)
            core.drop("namespace", name)

        self._execute(statement, CommitInfo(message, author))

    # Tables

    @checked_as(properties=table_properties, catalog=text_mapping)
    def create_table(
        self,
        identifier: Identifier,
        schema: SchemaLike | None = None,
        *,
        partition_spec: PartitionSpec | str | Iterable[str] | None = None,
        sort_order: SortOrder | str | Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        primary_key: str | Iterable[str] = (),
        metadata_location: str | PathLike[str] | None = None,
        catalog: Mapping[str, str] | None = None,
        catalog_table: Identifier | None = None,
        exist_ok: bool = False,
        message: str = "",
        author: str = "",
    ) -> Table:
        """Create a table (format §9): with `schema` an empty managed table, otherwise an external or federated table.

        Args:
            identifier: the name of the table; its namespace must exist.
            schema: a TrinityLake, pyarrow or pyiceberg schema, a mapping of column to SQL type, or Arrow data of which
                only the schema is used.
            partition_spec: a pyiceberg `PartitionSpec`, or expressions in the syntax of Iceberg or Spark:
                `["month(ts)", "bucket(16, id)", "carrier"]`.
            sort_order: a pyiceberg `SortOrder`, or expressions: `["dep_time desc", "carrier"]`.
            properties: Iceberg table properties.
            primary_key: the columns that identify a row; they become required, and `upsert` matches rows by them.
            metadata_location: the URI of an Iceberg `*.metadata.json`. The table becomes "external": it is read-only,
                and shows this metadata until `alter_table(identifier, metadata_location=…)`.
            catalog: properties for `pyiceberg.catalog.load_catalog`, without secrets. The table becomes "federated":
                reads and writes go to that catalog at once, without isolation, rollback or time travel.
            catalog_table: the name of the table in that catalog; by default `identifier`.
            exist_ok: return an existing table unchanged.

        Raises:
            ObjectAlreadyExists: a table or view with this name exists.
            ObjectNotFound: the namespace does not exist.
            InvalidArgument: Iceberg does not support the schema; an expression cannot be parsed or names an unknown
                column; or not exactly one of `schema`, `metadata_location` and `catalog` is given.
        """
        from trinitylake.definitions import as_schema
        from trinitylake.tables.partitioning_and_sorting import words

        namespace, name = split(identifier)
        if [schema is None, metadata_location is None, catalog is None].count(False) != 1:
            raise InvalidArgument("create_table needs either a schema, a metadata_location or a catalog")
        if catalog is None and catalog_table is not None:
            raise InvalidArgument("catalog_table is the name in another catalog, so it needs a catalog")
        # Arguments are read once, before the first attempt: in a second attempt a generator or a stream would be empty.
        given = dict(properties or {})
        declared = schema
        if schema is not None and not type(schema).__module__.startswith("pyiceberg."):  # with default values
            declared = as_schema(schema, 3 if given.get("format-version") == "3" else 2)
        spec, order = words(partition_spec, "partition_spec"), words(sort_order, "sort_order")
        keys = texts(primary_key, "primary_key")
        if declared is None and (spec or order or keys):
            raise InvalidArgument(
                "an external or federated table has its own layout: leave out partition_spec, sort_order, primary_key"
            )
        source_table = full_name(namespace, name) if catalog_table is None else full_name(*split(catalog_table))

        def statement(transaction: OpenTransaction) -> Table:
            tables = transaction._staged_tables
            if exist_ok and transaction._state().exists("table", namespace, name):
                pass
            elif declared is not None:
                tables.create(namespace, name, declared, spec, order, given, keys)
            elif catalog is not None:
                tables.create_federated(namespace, name, catalog, source_table, given)
            else:
                tables.create_external(namespace, name, str(metadata_location), given)
            return transaction.table((namespace, name))

        return self._afterwards(namespace, name, self._execute(statement, CommitInfo(message, author)))

    @checked_as(properties=table_properties)
    def alter_table(
        self,
        identifier: Identifier,
        properties: Mapping[str, str] | None = None,
        *,
        remove_properties: Iterable[str] = (),
        metadata_location: str | PathLike[str] | None = None,
        message: str = "",
        author: str = "",
    ) -> None:
        """Set and remove table properties; move an external table to newer metadata.

        `table.update_schema()` changes the schema. Raises `ObjectNotFound`, and `InvalidArgument` if
        `metadata_location` is given for a table that is not external.
        """
        namespace, name = split(identifier)
        removed = list(remove_properties)

        def statement(transaction: OpenTransaction) -> None:
            with transaction._located("table", namespace, name):
                table = transaction._staged_tables.open(
                    namespace, name, transaction._read_definition("table", namespace, name)
                )
            moved_to = None if metadata_location is None else str(metadata_location)
            transaction._staged_tables.alter(table, properties or {}, removed, moved_to)

        self._execute(statement, CommitInfo(message, author))

    @checked
    def rename_table(
        self, identifier: Identifier, new_identifier: Identifier, *, message: str = "", author: str = ""
    ) -> None:
        """Rename a table, also into another namespace. Its id and its files do not change.

        Raises `ObjectNotFound` for the table or the new namespace, `ObjectAlreadyExists` for the new name.
        """
        namespace, name = split(identifier)
        new_namespace, new_name = split(new_identifier)

        def statement(transaction: OpenTransaction) -> None:
            transaction._state().rename("table", namespace, name, new_namespace, new_name)
            transaction._staged_tables.rename(namespace, name, new_namespace, new_name)

        self._execute(statement, CommitInfo(message, author))

    @checked
    def drop_table(
        self, identifier: Identifier, *, missing_ok: bool = False, message: str = "", author: str = ""
    ) -> None:
        """Drop a table. Its data stays readable through older versions until they expire.

        Raises `ObjectNotFound` unless `missing_ok`.
        """
        namespace, name = split(identifier)

        def statement(transaction: OpenTransaction) -> None:
            core = transaction._state()
            if missing_ok and not core.exists("table", namespace, name):
                return
            core.drop("table", namespace, name)
            transaction._staged_tables.drop(namespace, name)

        self._execute(statement, CommitInfo(message, author))

    # Views

    @checked
    def create_view(
        self,
        identifier: Identifier,
        sql: str | Mapping[str, str],
        *,
        dialect: str = "spark",
        schema: SchemaLike | None = None,
        default_namespace: str = "",
        properties: Mapping[str, str] | None = None,
        message: str = "",
        author: str = "",
    ) -> View:
        """Create a view from SQL in one dialect, or from a mapping of dialects to SQL.

        Raises:
            ObjectAlreadyExists: a view or table with this name exists.
            ObjectNotFound: the namespace does not exist.
            InvalidArgument: the SQL is empty.
        """
        from trinitylake.definitions import as_schema, new_view_def, serialize

        namespace, name = split(identifier)
        definition = new_view_def(
            {dialect: sql} if isinstance(sql, str) else sql,
            schema=None if schema is None else as_schema(schema),
            default_namespace=default_namespace,
            properties=properties,
        )

        def statement(transaction: OpenTransaction) -> View:
            transaction._state().create("view", namespace, name, serialize(definition))
            return View(namespace, name, definition)

        return self._execute(statement, CommitInfo(message, author))

    @checked
    def replace_view(
        self,
        identifier: Identifier,
        sql: str | Mapping[str, str] | None = None,
        *,
        dialect: str = "spark",
        schema: SchemaLike | None = None,
        default_namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
        message: str = "",
        author: str = "",
    ) -> View:
        """Replace the SQL in all dialects, the schema, the default namespace or the properties of a view.

        A part that is None does not change, but new SQL without a `schema` removes the old schema. The id never
        changes. Raises `ObjectNotFound`.
        """
        from trinitylake.definitions import as_schema, new_view_def, parse_view_def, serialize

        namespace, name = split(identifier)

        def statement(transaction: OpenTransaction) -> View:
            with transaction._located("view", namespace, name):
                definition = parse_view_def(transaction._read_definition("view", namespace, name))
            if sql is not None:
                fresh = new_view_def({dialect: sql} if isinstance(sql, str) else sql)
                definition.ClearField("representations")
                definition.representations.extend(fresh.representations)
                definition.ClearField("schema")
            if schema is not None:
                definition.schema.CopyFrom(as_schema(schema).to_definition())
            if default_namespace is not None:
                definition.default_namespace = default_namespace
            if properties is not None:
                for given in [name for name in definition.properties if not name.startswith(OWN_PROPERTY_PREFIX)]:
                    del definition.properties[given]
                definition.properties.update(properties)
            transaction._state().replace("view", namespace, name, serialize(definition))
            return View(namespace, name, definition)

        return self._execute(statement, CommitInfo(message, author))

    @checked
    def rename_view(
        self, identifier: Identifier, new_identifier: Identifier, *, message: str = "", author: str = ""
    ) -> None:
        """Rename a view, also into another namespace. Its id does not change.

        Raises `ObjectNotFound` for the view or the new namespace, `ObjectAlreadyExists` for the new name.
        """
        old, new = split(identifier), split(new_identifier)
        self._execute(lambda transaction: transaction._state().rename("view", *old, *new), CommitInfo(message, author))

    @checked
    def drop_view(
        self, identifier: Identifier, *, missing_ok: bool = False, message: str = "", author: str = ""
    ) -> None:
        """Drop a view. Raises `ObjectNotFound` unless `missing_ok`."""
        namespace, name = split(identifier)

        def statement(transaction: OpenTransaction) -> None:
            core = transaction._state()
            if not (missing_ok and not core.exists("view", namespace, name)):
                core.drop("view", namespace, name)

        self._execute(statement, CommitInfo(message, author))

    # The lakehouse itself

    @checked
    def alter(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        remove_properties: Iterable[str] = (),
        name: str | None = None,
        message: str = "",
        author: str = "",
        **settings: Unpack[Settings],
    ) -> None:
        """Change the name, properties and `Settings` of the lakehouse (format §6). Other settings do not change.

        Raises `InvalidArgument` for an unknown setting, for a setting that is fixed when the lakehouse is created, and
        for an invalid value.
        """
        from trinitylake.definitions import parse_lakehouse_def, serialize

        removed = list(remove_properties)
        if fixed := settings.keys() - Settings.__annotations__.keys():
            raise InvalidArgument(
                f"not a setting, or fixed since the lakehouse was created: {', '.join(sorted(fixed))}"
            )

        def statement(transaction: OpenTransaction) -> None:
            core = transaction._state()
            definition = parse_lakehouse_def(transaction._lakehouse_definition)
            change_properties(definition.properties, properties, removed)
            apply_settings(definition, settings)
            if name is not None:
                definition.name = name
            transaction._lakehouse_definition = serialize(definition)
            core.set_lakehouse_definition(transaction._lakehouse_definition)

        self._execute(statement, CommitInfo(message, author))


class OpenTransaction(Statements):
    """The methods of a transaction that statements need.

    Attributes:
        _lakehouse_definition: the serialized `LakehouseDef` (format §6), with the changes of this transaction.
    """

    _lakehouse_definition: bytes

    @property
    @abstractmethod
    def version(self) -> int | None:
        """The version that the transaction committed (its base version if it wrote nothing); None before the commit."""

    @property
    @abstractmethod
    def base_version(self) -> int:
        """The version that the transaction reads."""

    @abstractmethod
    def _state(self) -> _core.Transaction:
        """The transaction of the core. Raises `TransactionClosed` if it has ended."""

    @property
    @abstractmethod
    def _staged_tables(self) -> StagedTables:
        """The tables that the transaction has opened or created."""
