"""Sorting objects on executors in Arrow's columns: few large rows go through Spark's shuffle, not many small ones.

Each task sorts what it reads and cuts it where the parts of the whole begin; each piece travels as one row, an Arrow
stream in a binary column. The task that gets the pieces of a part merges them, and keeps them as such streams.

Objects have three columns: `text` (the key without its padding, which sorts as the key does), `location` and `is_new`.
A task holds one part, of about `PART_ROWS` objects, so its memory does not grow with their number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

#: Objects in a part: some 150 bytes each, and twice that while they are sorted.
PART_ROWS = 125_000
#: Between namespace and name in the text of a key (see `sort_texts` in the core).
END_OF_NAMESPACE = "\x01"
#: Objects that a task sorts at a time before it hands them over.
RUN_ROWS = 125_000
#: Objects in one stream: some 400 kB. Java's collector handles arrays from half a megabyte on one by one.
STREAM_ROWS = 2_500
#: Of so many objects one is looked at to find where parts begin: 500 for each part.
SAMPLED_OF = 250

Batches = Iterable[pa.RecordBatch]

_OBJECTS = pa.schema({"text": pa.string(), "location": pa.string(), "is_new": pa.bool_()})
#: What `CutTask` gives: a piece of a part, or how many rows it had to leave out.
PIECES = "part int, rows binary, incomplete long"
_PIECES = pa.schema({"part": pa.int32(), "rows": pa.binary(), "incomplete": pa.int64()})
#: What `PartTask` gives, in rows of three sorts: a stream of objects, a namespace, and at last the counts.
SORTED = (
    "rows binary, namespace string, exists boolean, part int, objects long, views long, "
    "new_namespaces long, new_tables long, new_views long, incomplete long, twice string"
)
_SORTED = pa.schema(
    {"rows": pa.binary(), "namespace": pa.string(), "exists": pa.bool_(), "part": pa.int32()}
    | dict.fromkeys(
        ("objects", "views", "new_namespaces", "new_tables", "new_views", "incomplete"),
        pa.int64(),
    )
    | {"twice": pa.string()}
)


@dataclass(frozen=True)
class CutTask:
    """Sorts objects, run by run, and cuts the runs into the pieces of parts.

    Attributes:
        bounds: the first text of every part but the first, as UTF-8, in order.
        run_rows: how many objects make a run.
    """

    bounds: Sequence[bytes]
    run_rows: int = RUN_ROWS

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        incomplete = 0
        run: list[pa.RecordBatch] = []
        for batch in batches:
            whole = batch.filter(pc.and_(batch["text"].is_valid(), batch["location"].is_valid())).cast(_OBJECTS)
            incomplete += batch.num_rows - whole.num_rows
            run.append(whole)
            if sum(one.num_rows for one in run) >= self.run_rows:
                yield from self._pieces(run)
                run = []
        yield from self._pieces(run)
        if incomplete:
            yield pa.RecordBatch.from_pylist([{"part": 0, "incomplete": incomplete}], _PIECES)

    def _pieces(self, run: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = _in_order(pa.Table.from_batches(run, _OBJECTS))
        texts = _as_bytes(objects)
        cuts = [bisect_left(range(len(texts)), bound, key=lambda i: texts[i].as_py()) for bound in self.bounds]
        for part, (start, end) in enumerate(pairwise([0, *cuts, len(texts)])):
            piece = [{"part": part, "rows": rows} for rows in _streams(objects.slice(start, end - start))]
            yield pa.RecordBatch.from_pylist(piece, _PIECES)


@dataclass(frozen=True)
class PartTask:
    """Merges the pieces of a part in order and counts its objects.

    Attributes:
        replace: whether a new object replaces an existing one; otherwise that is a duplicate.
    """

    replace: bool

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        pieces = [_OBJECTS.empty_table()]
        incomplete = 0
        for batch in batches:
            incomplete += pc.sum(batch["incomplete"], min_count=0).as_py()
            pieces += [read_stream(rows) for rows in batch["rows"] if rows.is_valid]
        objects, twice = self._merged(_in_order(pa.concat_tables(pieces)))
        del pieces
        for rows in _streams(objects.select(["text", "location"])):
            yield pa.RecordBatch.from_pylist([{"rows": rows}], _SORTED)
        yield from _namespaces(objects)
        counts = {
            "part": context.partitionId(),
            "objects": objects.num_rows,
            "views": _of_kind(objects, "D").num_rows,
            "incomplete": incomplete,
            "twice": twice,
        }
        for name, letter in (("new_namespaces", "B"), ("new_tables", "C"), ("new_views", "D")):
            counts[name] = pc.sum(_of_kind(objects, letter)["is_new"], min_count=0).as_py()
        yield pa.RecordBatch.from_pylist([counts], _SORTED)

    def _merged(self, objects: pa.Table) -> tuple[pa.Table, str | None]:
        """Each object once, and the first forbidden duplicate."""
        twice = _same_as_next(objects)
        if not pc.any(twice, min_count=0).as_py():
            return objects, None
        if self.replace:
            objects = objects.sort_by([("text", "ascending"), ("is_new", "ascending")])
            is_new = objects["is_new"].combine_chunks()
            # The last has no next, which is a null that must not become one of the result.
            replaced = pc.and_kleene(twice, pc.and_kleene(pc.invert(is_new), _next(is_new)))
            wrong = pc.and_not(twice, replaced)
            if not pc.any(wrong, min_count=0).as_py():
                return objects.filter(pc.invert(replaced)), None
            twice = wrong
        return objects, objects["text"][pc.index(twice, True).as_py()].as_py()


def read_stream(rows: pa.BinaryScalar) -> pa.Table:
    """The objects of one row."""
    return pa.ipc.open_stream(rows.as_buffer()).read_all()


def objects_of(batches: Batches) -> Iterator[pa.RecordBatch]:
    """The objects of rows that `PartTask` gave, in order."""
    for batch in batches:
        for rows in batch["rows"]:
            if rows.is_valid:
                yield from read_stream(rows).to_batches()


def names_of_kind(letter: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A task that gives the full names of the objects of one kind, by the first letter of their texts."""

    def names(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in objects_of(batches):
            texts = _of_kind(pa.Table.from_batches([batch]), letter)["text"].combine_chunks()
            yield pa.RecordBatch.from_arrays([pc.utf8_slice_codeunits(texts, 1)], ["name"])

    return names


def bounds_of(samples: Sequence[str], parts: int) -> list[bytes]:
    """First texts of all parts but the first, such that all parts have about as many samples."""
    texts = sorted({text.encode() for text in samples})
    return sorted({texts[len(texts) * part // parts] for part in range(1, parts)}) if texts else []


def _in_order(objects: pa.Table) -> pa.Table:
    objects = objects.combine_chunks()
    return objects.take(pc.sort_indices(objects["text"])).combine_chunks()


def _as_bytes(objects: pa.Table) -> pa.Array:
    """The texts as bytes, for comparisons. One array, because access to a chunked one searches the chunk each time."""
    return objects["text"].combine_chunks().cast(pa.binary())


def _of_kind(objects: pa.Table, letter: str) -> pa.Table:
    texts = _as_bytes(objects)
    start, end = (
        bisect_left(range(len(texts)), bound, key=lambda i: texts[i].as_py())
        for bound in (letter.encode(), chr(ord(letter) + 1).encode())
    )
    return objects.slice(start, end - start)


def _next(values: pa.Array) -> pa.Array:
    """For each value the one after it, null for the last."""
    return pa.concat_arrays([values.slice(1), pa.nulls(min(len(values), 1), values.type)])


def _same_as_next(objects: pa.Table) -> pa.Array:
    texts = objects["text"].combine_chunks()
    return pc.fill_null(pc.equal(texts, _next(texts)), False)


def _namespaces(objects: pa.Table) -> Iterator[pa.RecordBatch]:
    """The namespaces, and those of tables and views, each once in a part."""
    below = objects.slice(0, objects.num_rows - _of_kind(objects, "E").num_rows)
    first = pc.list_element(pc.split_pattern(below["text"].combine_chunks(), END_OF_NAMESPACE, max_splits=1), 0)
    found = pc.unique(first)
    names, exists = pc.utf8_slice_codeunits(found, 1), pc.less(found, "C")
    if len(names):
        columns = {"namespace": names, "exists": exists}
        arrays = [columns.get(field.name, pa.nulls(len(names), field.type)) for field in _SORTED]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SORTED)


def _streams(objects: pa.Table) -> Iterator[bytes]:
    for start in range(0, objects.num_rows, STREAM_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, objects.schema) as writer:
            writer.write_table(objects.slice(start, STREAM_ROWS))
        data: bytes = sink.getvalue().to_pybytes()
        yield data
