"""Statements over many objects at once, each a version of its own: what a lakehouse offers beside transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from trinitylake.base.qualified_names import Identifier
from trinitylake.lakehouse.bulk.target import BulkTarget, RegistrationOptions

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from trinitylake.lakehouse.bulk.catalog_import import CatalogImport
    from trinitylake.lakehouse.bulk.target import Registration


class BulkStatements(BulkTarget):
    """Registration of many objects, and the import of another catalog."""

    def register(
        self,
        objects: Any,
        *,
        message: str = "",
        author: str = "",
        replace: bool = False,
        dry_run: bool = False,
        engine: SparkSession | None = None,
        file_io_properties: Mapping[str, str] | None = None,
    ) -> Registration:
        """Add any number of objects in one version, by building the tree anew.

        Args:
            objects: Arrow data, or with `engine` also a Spark DataFrame, in any order, with the columns `kind`
                ("namespace", "table" or "view"), `namespace` and `name` (null or "" for a namespace), and for each
                object one of `location` (the path below the root of a definition file that exists), `definition`
                (its bytes), `metadata_location` (of a table: an Iceberg metadata file; below the root the table
                becomes managed, elsewhere external) or, for a namespace, `properties` (a map, may be null).
            message: for the log.
            author: for the log.
            replace: objects that exist are replaced, as if dropped and made anew.
            dry_run: check all that the registration would refuse, and write nothing.
            engine: a Spark session whose executors write definitions and leaves of the tree; the tree is the same.
            file_io_properties: settings of PyIceberg's file access, for metadata outside of the lakehouse.

        Raises:
            RegistrationFailed: definitions of some objects cannot be made; it names them all.
            ObjectAlreadyExists: an object comes twice, or exists and not `replace`; a view has the name of a table.
            ObjectNotFound: the namespace of an object neither exists nor is among the objects.
            InvalidName, InvalidArgument: for a name that no key can hold; for columns that are missing or unknown.
            CommitConflict: with `engine`, if another version was committed meanwhile; without, it starts again.
        """
        from trinitylake.lakehouse.bulk.registration import register

        return register(
            self,
            objects,
            RegistrationOptions(message, author, replace, dry_run, file_io_properties or {}),
            engine,
        )

    def import_catalog(
        self,
        catalog: Catalog,
        *,
        namespaces: Iterable[Identifier] | None = None,
        existing: Literal["fail", "skip", "replace"] = "fail",
        message: str = "",
        author: str = "",
        dry_run: bool = False,
        engine: SparkSession | None = None,
        file_io_properties: Mapping[str, str] | None = None,
    ) -> CatalogImport:
        """Take over the namespaces, tables and views of a PyIceberg catalog in one version; `rollback` undoes it.

        Nothing is copied. A table whose metadata lies below this root becomes managed, and must not be written
        through the other catalog any more. Any other becomes external: read-only, as it is now; another import with
        `existing="replace"` takes it to its newest state. Namespaces that exist stay as they are.

        Args:
            catalog: as `pyiceberg.catalog.load_catalog` returns it.
            namespaces: only these, with what is nested in them; all if not given.
            existing: what becomes of tables and views that exist: "fail", "skip" leaves them, "replace".
            message: for the log.
            author: for the log.
            dry_run: read everything, and commit nothing.
            engine: a Spark session whose executors read the metadata files and build the tree.
            file_io_properties: settings of PyIceberg's file access, besides those of the catalog. Not stored.

        Raises `RegistrationFailed` that names every object that cannot be read, and otherwise as `register` does.
        """
        from trinitylake.lakehouse.bulk.catalog_import import import_catalog

        return import_catalog(
            self,
            catalog,
            namespaces=namespaces,
            existing=existing,
            message=message,
            author=author,
            dry_run=dry_run,
            engine=engine,
            file_io_properties=file_io_properties,
        )
