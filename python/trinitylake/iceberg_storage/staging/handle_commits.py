"""Commits that PyIceberg makes to a staged table: stages the requested updates and makes the response."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.staging.staged_table import StagedTable


def commit_of_handle(
    staged: StagedTable,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    base: Table | None = None,
) -> None:
    """Stage the commit of a handle. It is rebased if the table is not `base`, the table that the writer read.

    Raises as `StagedTable.commit_from`, and `CommitFailedException` for updates that do not fit the present table.
    """
    if base is None or base.metadata is staged.metadata:
        staged.commit(requirements, updates)
        return
    try:
        staged.commit_from(base.metadata, requirements, updates)
    except TrinityLakeError:
        raise
    except (ValueError, KeyError) as error:  # PyIceberg's words for updates that no longer fit
        raise CommitFailedException(
            f"table {'.'.join(staged.identifier)} was changed, and the updates do not fit: {error}"
        ) from error


def committed(staged: StagedTable) -> CommitTableResponse:
    """The response to a handle after its commit became a version of the lakehouse."""
    metadata, location = staged.metadata, staged.table.metadata_location
    if staged.changed:
        path, _ = staged.finish()
        location = staged.io.uri_of(path)
        metadata = read_metadata(staged.io, location, path)
    # Built without validation: that would copy the metadata.
    return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)
