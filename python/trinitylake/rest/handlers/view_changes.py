"""Updates of a view from engines, applied to its Iceberg metadata."""

from __future__ import annotations

import json
import time
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from trinitylake.iceberg_storage import metadata_invariants
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.handlers.body_parts import Name, Updates

#: Id that engines send for the schema or version that was added last.
LAST_ADDED = -1
#: Representations of one version: a text per dialect.
MAX_TEXTS = 50


class AssertViewUuid(BaseModel):
    """The only requirement of views."""

    type: Literal["assert-view-uuid"]
    uuid: str


class AddViewVersion(BaseModel):
    """Add a version."""

    action: Literal["add-view-version"]
    view_version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersion(BaseModel):
    """Make a version the current one."""

    action: Literal["set-current-view-version"]
    view_version_id: int = Field(alias="view-version-id")


ViewUpdate: TypeAlias = Annotated[
    AssignUUIDUpdate
    | UpgradeFormatVersionUpdate
    | AddSchemaUpdate
    | SetLocationUpdate
    | SetPropertiesUpdate
    | RemovePropertiesUpdate
    | AddViewVersion
    | SetCurrentViewVersion,
    Field(discriminator="action"),
]


class ViewChange(BaseModel):
    """The body of a commit to a view."""

    identifier: Name | None = None
    requirements: list[AssertViewUuid] = Field(default_factory=list)
    updates: Updates[ViewUpdate]


def check_texts(version: ViewVersion) -> None:
    """Raise `RestError` 400 for two texts in one dialect, and for too many texts."""
    if len(version.representations) > MAX_TEXTS:
        raise bad_request(f"a version of a view has at most {MAX_TEXTS} texts")
    dialects: set[str] = set()
    for dialect in (one.root.dialect.lower() for one in version.representations):
        if dialect in dialects:
            message = f"Invalid view version: Cannot add multiple queries for dialect {dialect}"
            raise RestError(400, "IllegalArgumentException", message)
        dialects.add(dialect)


def check_numbers(schema: Schema) -> None:
    """Raise `RestError` 400 for a schema with ids outside of 32 bits."""
    try:
        metadata_invariants.check_schema(schema)
    except ValueError as error:
        raise bad_request(f"the schema is invalid: {error}") from error


def check_version_id(id: int) -> None:
    """Raise `RestError` 400 for a version id outside of 32 bits."""
    if not 0 < id <= metadata_invariants.MAX_INTEGER:
        raise bad_request(f"the id of a view version must be between 1 and {metadata_invariants.MAX_INTEGER}, not {id}")


def changed(metadata: ViewMetadata, change: ViewChange) -> ViewMetadata:
    """The metadata after a change.

    Raises:
        CommitFailedException: if a requirement does not hold.
        RestError: 400 for an invalid update.
    """
    for requirement in change.requirements:
        if requirement.uuid != metadata.view_uuid:
            raise CommitFailedException(
                f"Requirement failed: view UUID does not match: expected {requirement.uuid} != {metadata.view_uuid}"
            )
    state = metadata.model_copy(
        update={
            "schemas": list(metadata.schemas),
            "versions": list(metadata.versions),
            "version_log": list(metadata.version_log),
            "properties": dict(metadata.properties),
        }
    )
    added = _Added(state)
    for update in change.updates:
        state = _apply(state, update, added)
    return state


class _Added:
    """Ids of schemas and versions by content, and of those that earlier updates added last."""

    schema_id: int | None = None
    version_id: int | None = None

    def __init__(self, state: ViewMetadata) -> None:
        # Of equal ones the first.
        self.schemas = {_held_by_schema(one): one.schema_id for one in reversed(state.schemas)}
        self.schema_ids = {one.schema_id for one in state.schemas}
        self.versions = {_held_by_version(one): one.version_id for one in reversed(state.versions)}
        self.times_millis = {one.version_id: one.timestamp_ms for one in reversed(state.versions)}
        self.last_schema_id = max(self.schema_ids, default=-1)
        self.last_version_id = max(self.times_millis)


def _held_by_schema(schema: Schema) -> str:
    """Content of a schema without its id."""
    return json.dumps(schema.model_dump(mode="json", exclude={"schema_id"}), sort_keys=True)


def _held_by_version(version: ViewVersion) -> str:
    """Content of a version without id and time."""
    return json.dumps(version.model_dump(mode="json", exclude={"version_id", "timestamp_ms"}), sort_keys=True)


def _apply(state: ViewMetadata, update: ViewUpdate, added: _Added) -> ViewMetadata:
    match update:
        case AssignUUIDUpdate() if str(update.uuid) != state.view_uuid.lower():
            raise bad_request("the UUID of a view cannot change")
        case UpgradeFormatVersionUpdate() if update.format_version != 1:
            raise bad_request(f"views have format version 1, not {update.format_version}")
        case AddSchemaUpdate():
            added.schema_id = _add_schema(state, update.schema_, added)
        case SetLocationUpdate():  # stored only: a view has no files
            return state.model_copy(update={"location": update.location})
        case SetPropertiesUpdate():
            state.properties.update(update.updates)
        case RemovePropertiesUpdate():
            for name in update.removals:
                state.properties.pop(name, None)
        case AddViewVersion():
            added.version_id = _add_version(state, update.view_version, added)
        case SetCurrentViewVersion():
            return _set_current(state, update.view_version_id, added)
    return state


def _add_schema(state: ViewMetadata, schema: Schema, added: _Added) -> int:
    check_numbers(schema)
    held = _held_by_schema(schema)
    if (same := added.schemas.get(held)) is not None:
        return same
    added.last_schema_id += 1
    added.schemas[held] = added.last_schema_id
    added.schema_ids.add(added.last_schema_id)
    state.schemas.append(schema.model_copy(update={"schema_id": added.last_schema_id}))
    return added.last_schema_id


def _add_version(state: ViewMetadata, version: ViewVersion, added: _Added) -> int:
    schema_id = version.schema_id
    if schema_id == LAST_ADDED:
        if added.schema_id is None:
            raise bad_request("the version refers to the schema that was added last, but none was added")
        schema_id = added.schema_id
    if schema_id not in added.schema_ids:
        raise bad_request(f"the version refers to schema {schema_id}, which the view does not have")
    version = version.model_copy(update={"schema_id": schema_id})
    held = _held_by_version(version)
    if (same := added.versions.get(held)) is not None:
        return same
    is_free = version.version_id > 0 and version.version_id not in added.times_millis
    id = version.version_id if is_free else added.last_version_id + 1
    check_version_id(id)
    added.last_version_id = max(added.last_version_id, id)
    added.versions[held] = id
    added.times_millis[id] = version.timestamp_ms
    state.versions.append(version.model_copy(update={"version_id": id}))
    return id


def _set_current(state: ViewMetadata, id: int, added: _Added) -> ViewMetadata:
    if id == LAST_ADDED or (added.version_id is not None and id not in added.times_millis):
        if added.version_id is None:
            raise bad_request("the version that was added last cannot be the current one: none was added")
        id = added.version_id
    if id not in added.times_millis:
        raise bad_request(f"the view has no version {id}")
    if id == state.current_version_id:
        return state
    moment = added.times_millis[id] if id == added.version_id else int(time.time() * 1000)
    state.version_log.append(ViewHistoryEntry.model_validate({"version-id": id, "timestamp-ms": moment}))
    return state.model_copy(update={"current_version_id": id})
