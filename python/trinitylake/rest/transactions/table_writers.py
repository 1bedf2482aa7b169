"""Open writers of `POST /ingest`: one per pair of table and dead-letter table, so that requests share commits."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.qualified_names import full_name
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.rest.workers.maintenance_jobs import PATIENCE_SECONDS, MaintenanceJob
from trinitylake.rest.workers.pool import WorkerPool
from trinitylake.tables.ingestion.table_writer import Limits, TableWriter
from trinitylake.tables.ingestion.writer_transaction import Acknowledgement, Target

#: How long rows wait for rows of other requests.
MAX_DELAY_SECONDS = 0.2
#: A writer is closed after this time without requests.
IDLE_SECONDS = 60.0

#: Namespace and name of a table, and those of its dead-letter table.
Key = tuple[tuple[str, str], tuple[str, str] | None]


class TableWriters:
    """The open writers of a server.

    The writers do not claim producers exclusively, because the requests of one producer may reach several servers.
    """

    def __init__(self, lake: Lakehouse, workers: WorkerPool) -> None:
        self._lake = lake
        self._workers = workers
        self._lock = threading.Lock()
        self._writers: dict[Key, tuple[TableWriter, float]] = {}

    def write(self, key: Key, data: object, producer: str | None, sequence: int | None) -> Acknowledgement:
        """Add rows to a table.

        Raises `ObjectNotFound` if the table, or the namespace of the dead-letter table, does not exist, and
        `InvalidArgument` if the table is not managed or as `TableWriter.write` does.
        """
        with self._lock:
            writer, _ = self._writers.get(key) or (self._opened(key), 0.0)
            self._writers[key] = writer, time.monotonic()
        return writer.write(data, sequence=sequence, producer=producer)

    def forget(self, key: Key) -> None:
        """Close the writer of a table that was dropped, so that the next request opens another one."""
        with self._lock:
            writer, _ = self._writers.pop(key, (None, 0.0))
        if writer is not None:
            writer.close()

    def close_idle(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Close the writers that had no request for `idle_seconds`."""
        with self._lock:
            idle = [key for key, (_, used) in self._writers.items() if time.monotonic() - used >= idle_seconds]
            writers = [self._writers.pop(key)[0] for key in idle]
        for writer in writers:
            writer.close()

    def _opened(self, key: Key) -> TableWriter:
        name, dead_letter_table = key
        table = self._lake.table(name)
        if table.type != "managed":
            raise InvalidArgument(f"table {full_name(*name)} is {table.type}: only managed tables can be ingested into")
        if dead_letter_table is not None:  # creating the namespace needs an admin
            self._lake.namespace(dead_letter_table[0])
        target = Target(name, table.id, dead_letter_table, writer=None)
        limits = Limits(MAX_DELAY_SECONDS, max_rows=100_000, max_size_bytes=64 << 20)
        return TableWriter(self._lake, target, table, limits, None, CommitInfo(), partial(self._compact, name))

    def _compact(self, table: tuple[str, str], target_file_size_bytes: int | None) -> None:
        """Compact a table, in a worker process if possible, because files that clients wrote may need much memory.

        A worker takes a second to start. So with workers, only complete compactions are run, without
        `target_file_size_bytes`.
        """
        if os.name != "posix" or self._lake.uri.startswith("memory:"):
            self._lake._compact(table, target_file_size_bytes)
            return
        if target_file_size_bytes is not None:
            return
        job = MaintenanceJob(StorageForTasks(self._lake._storage), {}, full_name(*table))
        self._workers.run(job, "", seconds=PATIENCE_SECONDS)
