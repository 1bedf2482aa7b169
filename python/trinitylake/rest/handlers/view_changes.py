"""Updates of a view from engines, applied to its Iceberg metadata."""

from __future__ import annotations

import json
import time
from copy import copy
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
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import LAST_ADDED, AssignedIds
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.handlers.body_parts import Name, Updates

#: Maximum number of representations of one version, which are SQL texts in different dialects.
MAX_TEXTS = 50


class AssertViewUuid(BaseModel):
    """The only requirement of views."""

    type: Literal["assert-view-uuid"]
    uuid: str


class AddViewVersion(BaseModel):
    action: Literal["add-view-version"]
    view_version: ViewVersion = Field(alias="view-version")


class SetCurrentViewVersion(BaseModel):
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
    """Raise `RestError` 400 for two SQL texts in one dialect, and for more than `MAX_TEXTS`."""
    if len(version.representations) > MAX_TEXTS:
        raise bad_request(f"a version of a view has at most {MAX_TEXTS} representations")
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
    builder = _ViewBuilder(metadata)
    for update in change.updates:
        builder.apply(update)
    return builder.metadata


class _ViewBuilder:
    """Applies updates one by one. `metadata` is the result so far."""

    def __init__(self, base: ViewMetadata) -> None:
        copies = {name: copy(getattr(base, name)) for name in ("schemas", "versions", "version_log", "properties")}
        self.metadata = base.model_copy(update=copies)
        self._schema_ids = AssignedIds(((_content(one, "schema_id"), one.schema_id) for one in base.schemas), 0)
        versions = ((_content(one, "version_id", "timestamp_ms"), one.version_id) for one in base.versions)
        self._version_ids = AssignedIds(versions, 1)
        self._times_millis = {one.version_id: one.timestamp_ms for one in reversed(base.versions)}

    def apply(self, update: ViewUpdate) -> None:
        """Apply one update. Raises `RestError` 400 if it does not fit."""
        match update:
            case AssignUUIDUpdate() if str(update.uuid) != self.metadata.view_uuid.lower():
                raise bad_request("the UUID of a view cannot change")
            case UpgradeFormatVersionUpdate() if update.format_version != 1:
                raise bad_request(f"views have format version 1, not {update.format_version}")
            case AddSchemaUpdate():
                self._add_schema(update.schema_)
            case SetLocationUpdate():  # stored only: a view has no files
                self.metadata = self.metadata.model_copy(update={"location": update.location})
            case SetPropertiesUpdate():
                self.metadata.properties.update(update.updates)
            case RemovePropertiesUpdate():
                for name in update.removals:
                    self.metadata.properties.pop(name, None)
            case AddViewVersion():
                self._add_version(update.view_version)
            case SetCurrentViewVersion():
                self._set_current(update.view_version_id)

    def _add_schema(self, schema: Schema) -> None:
        check_numbers(schema)
        id, is_new = self._schema_ids.give(_content(schema, "schema_id"))
        if is_new:
            self.metadata.schemas.append(schema.model_copy(update={"schema_id": id}))

    def _add_version(self, version: ViewVersion) -> None:
        schema_id = version.schema_id
        if schema_id == LAST_ADDED:
            if self._schema_ids.last_added is None:
                raise bad_request("the version refers to the schema that was added last, but none was added")
            schema_id = self._schema_ids.last_added
        if schema_id not in self._schema_ids.known:
            raise bad_request(f"the version refers to schema {schema_id}, which the view does not have")
        version = version.model_copy(update={"schema_id": schema_id})
        is_free = version.version_id > 0 and version.version_id not in self._times_millis
        content = _content(version, "version_id", "timestamp_ms")
        id, is_new = self._version_ids.give(content, default=version.version_id if is_free else None)
        if is_new:
            check_version_id(id)
            self._times_millis[id] = version.timestamp_ms
            self.metadata.versions.append(version.model_copy(update={"version_id": id}))

    def _set_current(self, id: int) -> None:
        added = self._version_ids.last_added
        if id == LAST_ADDED or (added is not None and id not in self._times_millis):
            if added is None:
                raise bad_request("the version that was added last cannot be the current one: none was added")
            id = added
        if id not in self._times_millis:
            raise bad_request(f"the view has no version {id}")
        if id == self.metadata.current_version_id:
            return
        moment = self._times_millis[id] if id == added else int(time.time() * 1000)
        self.metadata.version_log.append(ViewHistoryEntry.model_validate({"version-id": id, "timestamp-ms": moment}))
        self.metadata = self.metadata.model_copy(update={"current_version_id": id})


def _content(one: Schema | ViewVersion, *excluded: str) -> str:
    """JSON of a schema or view version without the `excluded` fields, to find an equal one that has another id."""
    return json.dumps(one.model_dump(mode="json", exclude={*excluded}), sort_keys=True)
