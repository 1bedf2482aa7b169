"""Tasks that write the leaves of the tree for sorted objects, or only check that every object can have a key.

This module is separate from `registration.py`, so that a Python worker for these tasks imports few modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.errors import InvalidArgument, InvalidName

Batches = Iterable[pa.RecordBatch]

PARTS = "number long, path string, text string, location string, error_kind string, error string"


@dataclass(frozen=True)
class LeafTask:
    """Writes the leaves of one partition.

    An error in the rows becomes a row of the result, so that Spark does not repeat the task. An error of the storage
    makes the task fail.
    """

    storage: StorageForTasks = field(repr=False)
    definition: bytes = field(repr=False)
    rows: int
    first_rows: Mapping[int, int]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        writer = _core.LeafWriter(self.storage.storage, self.definition, self.rows, self.first_rows.get(partition, 0))
        try:
            for objects in batches:
                if objects.num_rows:
                    yield _as_parts(writer.write(objects))
        except (InvalidName, InvalidArgument) as error:
            yield _problem(error.kind, str(error))
            return
        yield _as_parts(writer.finish())


@dataclass(frozen=True)
class KeyTask:
    """Checks that every object has a valid key, and writes nothing."""

    sizes: tuple[int, int, int]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        for objects in batches:
            try:
                _core.check_unpadded_keys(objects["text"], self.sizes)
            except (InvalidName, InvalidArgument) as error:
                yield _problem(error.kind, str(error))
                return


def _as_parts(parts: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(parts.num_rows, pa.string())
    columns = [parts["number"].cast(pa.int64()), parts["path"], parts["text"], parts["location"], nothing, nothing]
    return pa.RecordBatch.from_arrays(columns, ["number", "path", "text", "location", "error_kind", "error"])


def _problem(kind: str, message: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"error_kind": kind, "error": message}],
        pa.schema(
            {"number": pa.int64()} | dict.fromkeys(["path", "text", "location", "error_kind", "error"], pa.string())
        ),
    )
