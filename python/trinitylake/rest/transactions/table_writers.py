"""Open writers of `POST /ingest`: one per pair of table and dead-letter table, so that requests share commits."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.qualified_names import full_name
from trinitylake.errors import InvalidArgument, TrinityLakeError
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


@dataclass
class _SharedWriter:
    """A writer, the number of requests that add rows to it now, and when the last one ended (`time.monotonic`)."""

    writer: TableWriter
    users: int = 0
    used: float = 0.0

    def close(self) -> None:
        with suppress(TrinityLakeError):  # of rows whose client did not wait for the answer
            self.writer.close()


class TableWriters:
    """The open writers of a server.

    The writers do not claim producers exclusively, because the requests of one producer may reach several servers.
    """

    def __init__(self, lake: Lakehouse, workers: WorkerPool) -> None:
        self._lake = lake
        self._workers = workers
        self._lock = threading.Lock()
        self._writers: dict[Key, _SharedWriter] = {}

    def write(self, key: Key, data: object, producer: str | None, sequence: int | None) -> Acknowledgement:
        """Add rows to a table. Waits while the buffer of its writer is full.

        Raises `ObjectNotFound` if the table, or the namespace of the dead-letter table, does not exist, and
        `InvalidArgument` if the table is not managed or as `TableWriter.write` does.
        """
        with self._lock:
            shared = self._writers.get(key) or _SharedWriter(self._opened(key))
            self._writers[key] = shared
            shared.users += 1
        try:
            return shared.writer.write(data, sequence=sequence, producer=producer)
        finally:
            with self._lock:
                shared.users -= 1
                shared.used = time.monotonic()
                is_forgotten = not shared.users and self._writers.get(key) is not shared
            if is_forgotten:
                shared.close()

    def forget(self, key: Key) -> None:
        """Let the next request open another writer, because the table was dropped.

        The last request that adds rows to the present writer closes it.
        """
        with self._lock:
            shared = self._writers.pop(key, None)
            is_unused = shared is not None and not shared.users
        if shared is not None and is_unused:
            shared.close()

    def close_idle(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Close the writers that had no request for `idle_seconds`. A request that waits for the buffer is one."""
        with self._lock:
            now = time.monotonic()
            idle = [key for key, one in self._writers.items() if not one.users and now - one.used >= idle_seconds]
            writers = [self._writers.pop(key) for key in idle]
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
