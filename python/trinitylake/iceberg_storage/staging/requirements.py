"""What a commit requires of a table: Iceberg's requirements, checked against the metadata that is there.

They are checked when the commit arrives (`iceberg/table_writing.py`), when it is staged (`staged_table.py`), and when
it is redone because somebody else committed the table first (`rebase.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement


def check_requirements(requirements: Iterable[TableRequirement], metadata: TableMetadata | None) -> None:
    """Refuse a commit that requires what does not hold. `metadata` is None for a table that is not there.

    Raises PyIceberg's `CommitFailedException`.
    """
    for requirement in requirements:
        requirement.validate(metadata)
