"""Counts in the summary of a snapshot. Any engine may have written them, so they may be missing or invalid."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table.snapshots import Snapshot


def summary_of(snapshot: Snapshot | None) -> Mapping[str, str]:
    """The summary of a snapshot; empty for a missing snapshot or summary."""
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def count_in(summary: Mapping[str, str], name: str) -> int | None:
    """A count, such as "added-records"; None if it is missing or not a number of at most 18 digits."""
    text = str(summary.get(name, ""))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def live_rows(summary: Mapping[str, str]) -> int | None:
    """The number of rows in a snapshot, without rows that position deletes delete.

    None if the summary has no count of rows, or has equality deletes, which may delete any number of rows.
    """
    total = count_in(summary, "total-records")
    if total is None or summary.get("total-equality-deletes") not in (None, "", "0"):
        return None
    return max(0, total - (count_in(summary, "total-position-deletes") or 0))
