"""Tasks that write the leaves of the tree for sorted objects, or only check that every object can have a key.

This module is separate from `registration.py`, so that a Python worker for these tasks imports few modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.errors import InvalidArgument, InvalidName
from trinitylake.spark.task_batches import Batches

PARTS = "number long, path string, text string, location string, error_kind string, error string"
_NAMES = ("path", "text", "location", "error_kind", "error")
_SCHEMA = pa.schema({"number": pa.int64(), **dict.fromkeys(_NAMES, pa.string())})


def write_leaves(
    storage: StorageForTasks, definition: bytes, rows: int, first_rows: Mapping[int, int], batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Task that writes the leaves of one partition.

    An error in the rows becomes a row of the result, so that Spark does not repeat the task. An error of the storage
    makes the task fail.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    writer = _core.LeafWriter(storage.storage, definition, rows, first_rows.get(context.partitionId(), 0))
    try:
        for objects in batches:
            if objects.num_rows:
                yield _as_parts(writer.write(objects))
    except (InvalidName, InvalidArgument) as error:
        yield _problem(error.kind, str(error))
        return
    yield _as_parts(writer.finish())


def check_keys(sizes: tuple[int, int, int], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Task that checks that every object has a valid key, and writes nothing."""
    for objects in batches:
        try:
            _core.check_unpadded_keys(objects["text"], sizes)
        except (InvalidName, InvalidArgument) as error:
            yield _problem(error.kind, str(error))
            return


def _as_parts(parts: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(parts.num_rows, pa.string())
    columns = [parts["number"].cast(pa.int64()), parts["path"], parts["text"], parts["location"], nothing, nothing]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _problem(kind: str, message: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"error_kind": kind, "error": message}], _SCHEMA)
