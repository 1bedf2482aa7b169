"""Conflicts of the staged changes of a table with newer metadata."""

from __future__ import annotations

from trinitylake.errors import CommitConflict


class TableConflict(Exception):
    """Staged changes cannot be rebased. `requirement` says which requirement of Iceberg the newer metadata breaks."""

    def __init__(self, requirement: str) -> None:
        super().__init__(requirement)
        self.requirement = requirement

    def as_own(self) -> CommitConflict:
        """The public error."""
        return CommitConflict(f"the table changed meanwhile: {self.requirement}")


class RowConflict(TableConflict):
    """The rows of a statement conflict, or do not fit the newer schema: the statement has to run again.

    PyIceberg raises `ValidationException` for such a conflict, and does not retry the commit.
    """
