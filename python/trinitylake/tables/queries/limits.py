"""What a query may take that somebody else has written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryLimits:
    """Limits of one query, as far as DuckDB keeps them; a process of its own keeps the others.

    Attributes:
        memory_size_bytes: that DuckDB may take, and as much again on disk.
    """

    memory_size_bytes: int

    @property
    def settings(self) -> dict[str, str | bool | int | float | list[str]]:
        """For a connection of DuckDB."""
        size = f"{self.memory_size_bytes}B"
        return {"memory_limit": size, "max_temp_directory_size": size, "threads": 2}
