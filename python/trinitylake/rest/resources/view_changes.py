"""Updates of a view, as engines send them, applied to its Iceberg metadata."""

from __future__ import annotations

import time
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.resources.names import Name

#: What an engine writes for "the one that was just added".
LAST_ADDED = -1


class AssertViewUuid(BaseModel):
    """The only requirement that views have."""

    type: Literal["assert-view-uuid"]
    uuid: str


class AssignUuid(BaseModel):
    """Must be the one that the view has."""

    action: Literal["assign-uuid"]
    uuid: str


class UpgradeFormatVersion(BaseModel):
    """There is one version."""

    action: Literal["upgrade-format-version"]
    format_version: Literal[1] = Field(alias="format-version")


class AddSchema(BaseModel):
    """A schema for versions to name."""

    action: Literal["add-schema"]
    added: Schema = Field(alias="schema")


class SetLocation(BaseModel):
    """Only kept: a view has no files."""

    action: Literal["set-location"]
    location: str


class SetProperties(BaseModel):
    """Set properties."""

    action: Literal["set-properties"]
    updates: dict[str, str]


class RemoveProperties(BaseModel):
    """Remove properties."""

    action: Literal["remove-properties"]
    removals: list[str]


class AddViewVersion(BaseModel):
    """A version, not yet the current one."""

    action: Literal["add-view-version"]
    view_version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersion(BaseModel):
    """Make a version the current one."""

    action: Literal["set-current-view-version"]
    view_version_id: int = Field(alias="view-version-id")


ViewUpdate: TypeAlias = Annotated[
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetLocation
    | SetProperties
    | RemoveProperties
    | AddViewVersion
    | SetCurrentViewVersion,
    Field(discriminator="action"),
]


class ViewChange(BaseModel):
    """The body of a commit to a view."""

    identifier: Name | None = None
    requirements: list[AssertViewUuid] = Field(default_factory=list)
    updates: list[ViewUpdate]


def check_texts(version: ViewVersion) -> None:
    """Raises `RestError` 400 for two texts in one dialect."""
    dialects = [one.root.dialect.lower() for one in version.representations]
    if twice := [dialect for dialect in dialects if dialects.count(dialect) > 1]:
        message = f"Invalid view version: Cannot add multiple queries for dialect {twice[0]}"
        raise RestError(400, "IllegalArgumentException", message)


def changed(metadata: ViewMetadata, change: ViewChange) -> ViewMetadata:
    """The metadata after a change.

    Raises:
        CommitFailedException: if a requirement does not hold.
        RestError: 400 for an update that makes no sense.
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
    added = _Added()
    for update in change.updates:
        state = _apply(state, update, added)
    return state


class _Added:
    """The ids of what the updates before have added."""

    schema_id: int | None = None
    version_id: int | None = None


def _apply(state: ViewMetadata, update: ViewUpdate, added: _Added) -> ViewMetadata:
    match update:
        case AssignUuid() if update.uuid != state.view_uuid:
            raise bad_request("the UUID of a view cannot change")
        case AddSchema():
            added.schema_id = _add_schema(state, update.added)
        case SetLocation():
            return state.model_copy(update={"location": update.location})
        case SetProperties():
            state.properties.update(update.updates)
        case RemoveProperties():
            for name in update.removals:
                state.properties.pop(name, None)
        case AddViewVersion():
            added.version_id = _add_version(state, update.view_version, added)
        case SetCurrentViewVersion():
            return _set_current(state, update.view_version_id, added)
    return state


def _add_schema(state: ViewMetadata, schema: Schema) -> int:
    """The id of an equal schema that is there, or a new one."""
    for one in state.schemas:
        if one.fields == schema.fields and one.identifier_field_ids == schema.identifier_field_ids:
            return one.schema_id
    id = max((one.schema_id for one in state.schemas), default=-1) + 1
    state.schemas.append(schema.model_copy(update={"schema_id": id}))
    return id


def _add_version(state: ViewMetadata, version: ViewVersion, added: _Added) -> int:
    schema_id = version.schema_id
    if schema_id == LAST_ADDED:
        if added.schema_id is None:
            raise bad_request("the version names the schema that was added last, but none was added")
        schema_id = added.schema_id
    if schema_id not in [one.schema_id for one in state.schemas]:
        raise bad_request(f"the version names the schema {schema_id}, which the view does not have")
    same = {"version_id", "timestamp_ms"}
    version = version.model_copy(update={"schema_id": schema_id})
    for one in state.versions:
        if one.model_dump(exclude=same) == version.model_dump(exclude=same):
            return one.version_id
    taken = [one.version_id for one in state.versions]
    id = version.version_id if version.version_id not in taken and version.version_id > 0 else max(taken) + 1
    state.versions.append(version.model_copy(update={"version_id": id}))
    return id


def _set_current(state: ViewMetadata, id: int, added: _Added) -> ViewMetadata:
    if id == LAST_ADDED or (added.version_id is not None and id not in [one.version_id for one in state.versions]):
        if added.version_id is None:
            raise bad_request("the version that was added last cannot be the current one: none was added")
        id = added.version_id
    version = next((one for one in state.versions if one.version_id == id), None)
    if version is None:
        raise bad_request(f"the view has no version {id}")
    if id == state.current_version_id:
        return state
    moment = version.timestamp_ms if id == added.version_id else int(time.time() * 1000)
    entry = ViewHistoryEntry.model_validate({"version-id": id, "timestamp-ms": moment})
    return state.model_copy(update={"current_version_id": id, "version_log": [*state.version_log, entry]})
