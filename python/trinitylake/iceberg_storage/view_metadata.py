"""Iceberg's view metadata, kept in the definition of a view (format §6).

The fields of a `ViewDef` have what engines use: SQL texts, columns, default namespace, and properties. The reserved
property `trinitylake.iceberg-view` has further fields of Iceberg as JSON: location, and all versions with their times
and schemas. So a view needs no separate file. If SQL texts or default namespace differ from this JSON, TrinityLake's
own API has changed them, and they are added to the Iceberg metadata as another version of the view.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.view.metadata import (
    SQLViewRepresentation,
    ViewHistoryEntry,
    ViewMetadata,
    ViewRepresentation,
    ViewVersion,
)

from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.definitions import Schema, ViewDef, new_view_def
from trinitylake.errors import CorruptFile, InvalidArgument

PROPERTY = OWN_PROPERTY_PREFIX + "iceberg-view"

#: Creation time of a view that was not created through Iceberg: view definitions contain no time.
UNKNOWN_TIME_MILLIS = 0

_KEPT = {"location", "schemas", "versions", "current_version_id", "version_log"}


def view_definition(metadata: ViewMetadata) -> ViewDef:
    """The definition of a view with that metadata. Its id is the view's UUID.

    Raises `InvalidArgument` for a view without SQL, with two SQL texts in one dialect, or with a reserved property.
    """
    version, schema = _current(metadata)
    representations: dict[str, str] = {}
    dialects: set[str] = set()
    for representation in version.representations:
        dialect = representation.root.dialect
        if dialect.lower() in dialects:
            raise InvalidArgument(f"the view has two texts in the dialect {dialect!r}")
        dialects.add(dialect.lower())
        representations[dialect] = representation.root.sql
    if reserved := [name for name in metadata.properties if name.startswith(OWN_PROPERTY_PREFIX)]:
        raise InvalidArgument(f"properties that start with {OWN_PROPERTY_PREFIX!r} are reserved: {reserved}")
    return new_view_def(
        representations,
        id=metadata.view_uuid,
        schema=Schema.from_iceberg(schema) if schema.fields else None,
        default_namespace=".".join(version.default_namespace),
        properties={**metadata.properties, PROPERTY: metadata.model_dump_json(include=_KEPT)},
    )


def view_metadata(definition: ViewDef, default_location: str) -> ViewMetadata:
    """The Iceberg metadata of a view. Raises `CorruptFile`.

    A view that was not created through Iceberg gets `default_location`.
    """
    properties = dict(definition.properties)
    kept = properties.pop(PROPERTY, None)
    own = {"view-uuid": definition.id, "format-version": 1, "properties": properties}
    if kept is None:
        return _first_metadata(definition, own, default_location)
    try:
        metadata = ViewMetadata.model_validate({**json.loads(kept), **own})
        version, _ = _current(metadata)
    except (ValidationError, ValueError, TypeError) as error:
        raise CorruptFile(f"the Iceberg metadata of the view is damaged: {error}") from error
    texts = {one.dialect: one.sql for one in definition.representations}
    is_changed = _text_of(version) != (texts, definition.default_namespace)
    return _with_version(metadata, version, definition) if is_changed else metadata


def read_view_metadata(io: FileIO, location: str) -> ViewMetadata:
    """The metadata in a view metadata file. Raises `CorruptFile` and `FileNotFoundError`."""
    with io.new_input(location).open() as file:
        data = file.read()
    try:
        metadata = ViewMetadata.model_validate_json(data)
        _current(metadata)
    except (ValidationError, ValueError) as error:
        raise CorruptFile(f"{location}: not Iceberg view metadata: {error}", path=location) from error
    return metadata


def new_view_metadata(
    id: str, location: str, schema: IcebergSchema, version: ViewVersion, properties: dict[str, str]
) -> ViewMetadata:
    """The metadata of a new view. `schema` gets the id that `version` names."""
    return ViewMetadata.model_validate(
        {
            "view-uuid": id,
            "format-version": 1,
            "location": location,
            "schemas": [schema.model_copy(update={"schema_id": version.schema_id})],
            "current-version-id": version.version_id,
            "versions": [version],
            "version-log": [_log_entry(version)],
            "properties": properties,
        }
    )


def _first_metadata(definition: ViewDef, own: dict[str, Any], location: str) -> ViewMetadata:
    version = _version(definition, 1, 0, UNKNOWN_TIME_MILLIS)
    schema = _declared_schema(definition, 0)
    return new_view_metadata(definition.id, location, schema, version, own["properties"])


def _with_version(metadata: ViewMetadata, last: ViewVersion, definition: ViewDef) -> ViewMetadata:
    """The metadata with the content of the definition as another version, which becomes the current version."""
    schema = _declared_schema(definition, max(schema.schema_id for schema in metadata.schemas) + 1)
    number = max(version.version_id for version in metadata.versions) + 1
    version = _version(definition, number, schema.schema_id, last.timestamp_ms)
    return metadata.model_copy(
        update={
            "schemas": [*metadata.schemas, schema],
            "current_version_id": number,
            "versions": [*metadata.versions, version],
            "version_log": [*metadata.version_log, _log_entry(version)],
        }
    )


def _version(definition: ViewDef, number: int, schema_id: int, timestamp_millis: int) -> ViewVersion:
    return ViewVersion.model_validate(
        {
            "version-id": number,
            "schema-id": schema_id,
            "timestamp-ms": timestamp_millis,
            "representations": [
                ViewRepresentation(SQLViewRepresentation(type="sql", sql=one.sql, dialect=one.dialect))
                for one in definition.representations
            ],
            "default-namespace": tuple(definition.default_namespace.split(".")) if definition.default_namespace else (),
        }
    )


def _declared_schema(definition: ViewDef, schema_id: int) -> IcebergSchema:
    if not definition.HasField("schema"):
        return IcebergSchema(schema_id=schema_id)
    schema = Schema.from_definition(definition.schema).to_iceberg()
    return schema.model_copy(update={"schema_id": schema_id})


def _log_entry(version: ViewVersion) -> ViewHistoryEntry:
    return ViewHistoryEntry.model_validate({"timestamp-ms": version.timestamp_ms, "version-id": version.version_id})


def _current(metadata: ViewMetadata) -> tuple[ViewVersion, IcebergSchema]:
    """The current version and its schema. Raises `ValueError` if one of them is missing."""
    versions = {version.version_id: version for version in reversed(metadata.versions)}
    schemas = {schema.schema_id: schema for schema in reversed(metadata.schemas)}
    if (version := versions.get(metadata.current_version_id)) is None:
        raise ValueError(f"the current version {metadata.current_version_id} is not among the versions")
    if version.schema_id not in schemas:
        raise ValueError(f"the schema {version.schema_id} of the current version is not among the schemas")
    return version, schemas[version.schema_id]


def _text_of(version: ViewVersion) -> tuple[dict[str, str], str]:
    return {one.root.dialect: one.root.sql for one in version.representations}, ".".join(version.default_namespace)
