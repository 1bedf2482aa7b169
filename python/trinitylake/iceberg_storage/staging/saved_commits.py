"""Staged changes of a table as JSON, with which another process can resume the transaction.

The JSON has Iceberg's updates and requirements, and the metadata is built from them again. A resumed table is rebased
exactly like the original one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table.update import TableRequirement, TableUpdate

from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead
from trinitylake.iceberg_storage.staging.rebase import StagedCommit

_UPDATES: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS: TypeAdapter[tuple[TableRequirement, ...]] = TypeAdapter(tuple[TableRequirement, ...])


def commits_to_json(commits: Sequence[StagedCommit], schema: Schema) -> list[dict[str, Any]]:
    """The commits of a staged table, in order; `schema` is its current one."""
    return [
        {
            "requirements": [one.model_dump(mode="json", by_alias=True) for one in commit.requirements],
            "updates": [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in commit.updates],
            "rows-read": [read.to_json(schema) for read in commit.rows_read],
        }
        for commit in commits
    ]


def commits_from_json(commits: Sequence[dict[str, Any]]) -> list[StagedCommit]:
    """The inverse of `commits_to_json`. Raises pydantic's `ValidationError`."""
    return [
        StagedCommit(
            _REQUIREMENTS.validate_python(commit["requirements"]),
            _UPDATES.validate_python(commit["updates"]),
            tuple(RowsRead.from_json(read) for read in commit["rows-read"]),
        )
        for commit in commits
    ]
