"""Errors that say why staged changes of a table conflict with newer metadata."""

from __future__ import annotations

from trinitylake.errors import CommitConflict


class TableConflict(Exception):
    """Staged changes do not hold on the newer metadata. `requirement` says which of Iceberg's requirements broke."""

    def __init__(self, requirement: str) -> None:
        super().__init__(requirement)
        self.requirement = requirement

    def as_own(self) -> CommitConflict:
        """What callers get for it."""
        return CommitConflict(f"the table changed meanwhile: {self.requirement}")


class RowConflict(TableConflict):
    """New rows do not fit the newer schema, and would not on any later try: they have to be written anew."""
