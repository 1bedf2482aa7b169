"""Retention of snapshots in the metadata file of a table.

Each append writes all snapshots in the metadata file again, about 0.6 KB each, so a metadata file lists only recent
snapshots. Older snapshots are in the metadata files of older versions of the lakehouse. `retained` selects the
snapshots that remain:

1. The snapshot of each branch and tag.
2. Of the ancestors of `main`, the newest 20, and those of the last five days among the newest 500. Iceberg's properties
   `history.expire.min-snapshots-to-keep` and `history.expire.max-snapshot-age-ms`, and the retention of a branch,
   replace these limits.
3. All ancestors of another branch, unless the branch or the table has a retention. A client that publishes such a
   branch looks for the head of `main` among them.
4. Snapshots without a branch, such as those of write-audit-publish, for `history.expire.max-snapshot-age-ms`.
5. Of the ancestors of a branch, at most 500 that are younger than the longest retry of a client
   (`commit.retry.total-timeout-ms`, by default 30 minutes). A client that lost a race fails unless it finds the
   snapshot that it began with among the ancestors of the new head.
6. The newest snapshot of each streaming query of Spark and all later snapshots, if that snapshot is among the newest
   500 or of the last five days. A restarted query looks for its last epoch in them, and writes it again if it is
   missing.

A commit keeps the snapshots that it adds. So each snapshot is in the metadata file of the version that added it, where
`row_conflicts.py` finds it. Retention deletes no files, because older versions need the files of these snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

#: Number of retained snapshots of the main branch, and of metadata files in the log, if no property sets the number.
SNAPSHOTS_KEPT = 20
#: Maximum number of snapshots of a branch that are retained for their age if no property sets an age. With 500
#: snapshots an append takes 11 ms of CPU and writes 0.3 MB of metadata, with 20 it takes 4 ms and writes 15 KB (local
#: disk, 2026-11-26).
YOUNG_KEPT = 500


class Retention(NamedTuple):
    """Retention of a branch: the newest `least` snapshots, and the young ones among the newest `among` snapshots."""

    least: float
    age_millis: float = 0
    among: float = float("inf")


#: Retention of the main branch if no property sets another one.
UNSET = Retention(SNAPSHOTS_KEPT, TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT, YOUNG_KEPT)

_MIN_SNAPSHOTS, _MAX_AGE = TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MAX_SNAPSHOT_AGE_MS
_RETRY_TIME = TableProperties.COMMIT_TOTAL_RETRY_TIME_MS
#: Property in the summary of a snapshot that a streaming query of Spark wrote.
STREAMING_QUERY = "spark.sql.streaming.queryId"
_STREAM_AGE_MILLIS = TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT


def trimmed(metadata: TableMetadata, base: TableMetadata) -> TableMetadata:
    """The metadata of a commit on `base`, without the snapshots of `base` that are not retained."""
    if not base.snapshots:
        return metadata
    present, before = ({one.snapshot_id for one in known.snapshots} for known in (metadata, base))
    return without(metadata, (present & before) - retained(metadata))


def retained(metadata: TableMetadata, unset: Retention | None = None, now_millis: int | None = None) -> set[int]:
    """The ids of the snapshots that are retained by the rules of this module.

    Args:
        unset: the retention of `main` if no property sets it; by default `UNSET`.
        now_millis: the time at which ages are measured; by default the last change of the table.
    """
    heads = dict(metadata.refs)
    if metadata.current_snapshot_id is not None and MAIN_BRANCH not in heads:
        main = {"snapshot-id": metadata.current_snapshot_id, "type": "branch"}
        heads[MAIN_BRANCH] = SnapshotRef.model_validate(main)
    ids: set[int] = set()
    reachable: set[int] = set()
    now = metadata.last_updated_ms if now_millis is None else now_millis
    retry_age = _number(metadata.properties, _RETRY_TIME)
    if retry_age is None:
        retry_age = TableProperties.COMMIT_TOTAL_RETRY_TIME_MS_DEFAULT
    for name, ref in heads.items():
        least, age, among = _retention(name, ref, metadata.properties, UNSET if unset is None else unset)
        ancestors = list(_ancestors(metadata, ref.snapshot_id))
        is_branch = ref.snapshot_ref_type == SnapshotRefType.BRANCH
        if is_branch:
            least = max(least, _needed_by_streams(ancestors, now))
        for position, snapshot in enumerate(ancestors):
            reachable.add(snapshot.snapshot_id)
            past = now - snapshot.timestamp_ms
            is_for_retries = is_branch and position < YOUNG_KEPT and past < retry_age
            if position < least or (position < among and past < age) or is_for_retries:
                ids.add(snapshot.snapshot_id)
    orphans_age = _number(metadata.properties, _MAX_AGE)
    if orphans_age is None:
        orphans_age = TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT
    for snapshot in metadata.snapshots if len(reachable) < len(metadata.snapshots) else ():
        if snapshot.snapshot_id not in reachable and now - snapshot.timestamp_ms < orphans_age:
            ids.add(snapshot.snapshot_id)
    return ids


def retained_of_refs(metadata: TableMetadata, least: int) -> set[int]:
    """The ids of the snapshots that tags name, and of the `least` newest snapshots of each branch."""
    ids: set[int] = set()
    for ref in metadata.refs.values():
        count = 1 if ref.snapshot_ref_type == SnapshotRefType.TAG else least
        ids.update(one.snapshot_id for one in islice(_ancestors(metadata, ref.snapshot_id), count))
    return ids


def without(metadata: TableMetadata, removed: set[int]) -> TableMetadata:
    """The same metadata without some snapshots and their statistics.

    The snapshot log loses all entries up to the last removed snapshot, as in Iceberg for Java. A log with a gap would
    give the wrong snapshot for a time in the gap. The other snapshots keep their parent ids, so that the ancestors of a
    branch can be found in older metadata.
    """
    if not removed:
        return metadata
    log = metadata.snapshot_log
    gaps = [position for position, entry in enumerate(log, 1) if entry.snapshot_id in removed]
    return metadata.model_copy(
        update={
            "snapshots": [one for one in metadata.snapshots if one.snapshot_id not in removed],
            "snapshot_log": log[gaps[-1] if gaps else 0 :],
            "statistics": [one for one in metadata.statistics if one.snapshot_id not in removed],
            "partition_statistics": [one for one in metadata.partition_statistics if one.snapshot_id not in removed],
        }
    )


def _needed_by_streams(ancestors: Sequence[Snapshot], now: int) -> int:
    """Number of the newest snapshots of a branch that streaming queries may look for (rule 6)."""
    known: set[str] = set()
    needed = 0
    for position, snapshot in enumerate(ancestors):
        query = None if snapshot.summary is None else snapshot.summary[STREAMING_QUERY]
        is_recent = position < YOUNG_KEPT or now - snapshot.timestamp_ms < _STREAM_AGE_MILLIS
        if query is not None and query not in known and is_recent:
            known.add(query)
            needed = position + 1
    return needed


def _retention(name: str, ref: SnapshotRef, properties: Mapping[str, str], unset: Retention) -> Retention:
    if ref.snapshot_ref_type == SnapshotRefType.TAG:
        return Retention(1)
    least, age = ref.min_snapshots_to_keep, ref.max_snapshot_age_ms
    if least is None:
        least = _number(properties, _MIN_SNAPSHOTS)
    if age is None:
        age = _number(properties, _MAX_AGE)
    if age is not None:
        return Retention(max(1, least or 0), age)
    if least is not None:
        return unset._replace(least=max(1, least))
    return unset if name == MAIN_BRANCH else Retention(float("inf"))


def _number(properties: Mapping[str, str], name: str) -> int | None:
    """The value of a property; None if it is not set. An invalid value counts as infinite: all are retained."""
    value = properties.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        return 1 << 63


def _ancestors(metadata: TableMetadata, id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, as far as the metadata contains them."""
    seen: set[int] = set()
    while id is not None and id not in seen and (snapshot := metadata.snapshot_by_id(id)) is not None:
        seen.add(id)
        yield snapshot
        id = snapshot.parent_snapshot_id
