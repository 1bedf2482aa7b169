"""Check of Iceberg's requirements of a commit against metadata.

They are checked when the commit arrives (`iceberg/table_writing.py`), when it is staged (`staged_table.py`), and when
it is rebased (`rebase.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement


def check_requirements(requirements: Iterable[TableRequirement], metadata: TableMetadata | None) -> None:
    """Refuse a commit whose requirements do not hold. `metadata` is None for a table that does not exist.

    Raises PyIceberg's `CommitFailedException`.
    """
    for requirement in requirements:
        requirement.validate(metadata)
