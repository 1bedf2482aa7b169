"""Staged changes of a table as JSON, so that another process can go on with the transaction.

What is kept is what was asked for, Iceberg's updates with their requirements; the metadata is built from it anew. So a
resumed table is redone on newer metadata exactly as it would have been where it began.
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
