"""Rows in streams: they are written while they arrive, and new columns can be added to the table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

import trinitylake as tl
from trinitylake.tables.merging.row_operations import take_rows

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", "c"]})


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS)
    lake.create_table("a.parts", ROWS, partition_spec=["name"])
    return lake


class Once:
    """An object that offers nothing but an Arrow stream, which can be read once."""

    def __init__(self, rows: pa.Table) -> None:
        self.reader = rows.to_reader(max_chunksize=1)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


STREAMS: dict[str, Callable[[], Any]] = {
    "reader": lambda: ROWS.to_reader(max_chunksize=1),
    "generator": lambda: (batch for batch in ROWS.to_batches(max_chunksize=1)),
    "stream": lambda: Once(ROWS),
    "lazy": lambda: pl.from_arrow(ROWS).lazy().filter(pl.col("id") > 0),  # type: ignore[union-attr]
    "relation": lambda: duckdb.connect().from_arrow(ROWS),
}


def rows(reader: Any, name: str = "a.t") -> list[dict[str, Any]]:
    return sorted(reader.table(name).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("name", ["a.t", "a.parts"])
def test_every_stream_is_appended_and_overwrites(lake: tl.Lakehouse, kind: str, name: str) -> None:
    lake.table(name).append(STREAMS[kind]())
    assert rows(lake, name) == ROWS.to_pylist()
    with lake.transaction() as txn:
        txn.table(name).append(STREAMS[kind]())
        txn.table(name).overwrite(STREAMS[kind](), filter="id = 2")
        assert len(rows(txn, name)) == 7
    assert len(rows(lake, name)) == 7
    lake.table(name).overwrite(STREAMS[kind]())
    assert rows(lake, name) == ROWS.to_pylist()
    assert lake.table(name).upsert(STREAMS[kind](), on="id") == (0, 0)
    assert not lake.maintenance.fsck().findings


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_survives_a_lost_race(lake: tl.Lakehouse, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that is read again after a conflict would be empty, and nothing would be committed."""
    table = lake.table("a.t")
    real, races, attempts = tl.Transaction.commit, iter(range(2)), []

    def commit(txn: tl.Transaction, **options: Any) -> int:
        attempts.append(txn.id)
        if next(races, None) is not None:
            txn.rollback()
            raise tl.CommitConflict("others changed what cannot be put together")
        return real(txn, **options)

    monkeypatch.setattr(tl.Transaction, "commit", commit)
    table.append(STREAMS[kind]())
    assert len(set(attempts)) == 3
    assert rows(lake) == ROWS.to_pylist()


@pytest.mark.parametrize("name", ["a.t", "a.parts"])
@pytest.mark.parametrize("place", ["lakehouse", "transaction"])
def test_a_generator_that_raises_midway_leaves_nothing(lake: tl.Lakehouse, name: str, place: str) -> None:
    class Broken(Exception):
        pass

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches(max_chunksize=1)
        raise Broken

    version = lake.version
    if place == "lakehouse":
        for write in (lake.table(name).append, lake.table(name).overwrite):
            with pytest.raises(Broken):
                write(broken())
        assert (lake.version, rows(lake, name)) == (version, [])
    else:
        with lake.transaction() as txn:
            table = txn.table(name)
            table.append(ROWS)
            for write in (table.append, table.overwrite):
                with pytest.raises(Broken):
                    write(broken())
            with pytest.raises(Broken):
                table.append(with_column(broken()), evolve_schema=True)
            assert list(table.schema.names) == ["id", "name"]
        assert rows(lake, name) == ROWS.to_pylist()
        data = [path for path, _, _ in lake._storage.list("") if path.endswith(".parquet")]
        assert len(data) == (1 if name == "a.t" else 3)


def with_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({**batch.to_pydict(), "more": [1] * batch.num_rows})


# Memory

PEAK = """
import resource, sys
import numpy, pyarrow as pa, trinitylake as tl

table, peaks = tl.open(sys.argv[1]).table(sys.argv[2]), []

def batches():
    source = numpy.random.default_rng(1)
    for number in range(30):
        if number == 10:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
        ids = source.integers(0, 1 << 40, 500_000)
        columns = {"id": ids, "value": source.random(500_000), "part": numpy.full(500_000, number % 4)}
        yield pa.RecordBatch.from_pydict(columns)

table.append(batches())
print(*peaks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def peaks(lake: tl.Lakehouse, program: str, name: str, *arguments: str) -> list[int]:
    """The maximum memory, in MiB, that a program prints, at one or several moments."""
    command = [sys.executable, "-c", program, lake.uri, name, *arguments]
    return [*map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())]


@pytest.mark.parametrize("name", ["a.numbers", "a.partitioned"])
def test_memory_does_not_grow_with_the_stream(lake: tl.Lakehouse, name: str) -> None:
    """A stream to a partitioned table was collected before the first file was written."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("part", pa.int64())])
    lake.create_table(name, schema, partition_spec=["part"] if name == "a.partitioned" else None)
    properties = {"write.target-file-size-bytes": str(16 << 20), "write.parquet.compression-codec": "none"}
    lake.alter_table(name, properties)
    early, late = peaks(lake, PEAK, name)
    assert late - early < 130, (early, late)  # of 240 MB more
    assert lake.table(name).scan().count() == 30 * 500_000


# Columns that follow


def test_new_columns_are_added_in_the_same_version(lake: tl.Lakehouse) -> None:
    """A load does not stop when a source sends a new field."""
    lake.table("a.t").append(ROWS)
    version = lake.version
    lake.table("a.t").append({"id": [4], "more": [1.5], "tags": [["x"]]}, evolve_schema=True)
    assert lake.version == version + 1
    assert rows(lake)[-2:] == [
        {"id": 3, "name": "c", "more": None, "tags": None},
        {"id": 4, "name": None, "more": 1.5, "tags": ["x"]},
    ]
    with pytest.raises(tl.InvalidArgument, match="no column other"):
        lake.table("a.t").append({"id": [5], "other": [1]})


def test_types_become_wider_as_iceberg_allows(lake: tl.Lakehouse) -> None:
    narrow = pa.schema([("i", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(5, 2))])
    table = lake.create_table("a.w", narrow)
    table.append({"i": [1], "f": [1.5], "d": [Decimal("1.50")]})
    wide = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(20, 2))])
    table.append(
        pa.table({"i": [1 << 40], "f": [0.1], "d": [Decimal("123456789.25")]}, schema=wide), evolve_schema=True
    )
    assert [str(column.type) for column in table.schema.columns] == ["BIGINT", "DOUBLE", "DECIMAL(20,2)"]
    assert sorted(table.scan().to_arrow()["i"].to_pylist()) == [1, 1 << 40]
    table.append(pa.table({"i": [7], "f": [0.5], "d": [Decimal("1.00")]}, schema=narrow), evolve_schema=True)
    assert str(table.schema.columns[0].type) == "BIGINT"


@pytest.mark.parametrize(
    "kind", ["{}", "map<text, {}>", "list<list<{}>>", "map<text, list<{}>>", "list<map<text, {}>>"][:]
)
def test_fields_of_structs_follow_wherever_they_are(lake: tl.Lakehouse, kind: str) -> None:
    """Otherwise values of new fields in maps and in lists of lists would be left out."""
    table = lake.create_table("a.deep", {"id": "bigint", "c": kind.format("struct<x: int>")})
    wanted = lake.create_table("a.wanted", {"id": "bigint", "c": kind.format("struct<x: bigint, y: text>")})
    value: object = {"x": 1 << 40, "y": "new"}
    for part in reversed(kind.replace("map<text, ", "m").replace("list<", "l").partition("{")[0]):
        value = [("a", value)] if part == "m" else [value]
    given = pa.Table.from_pylist([{"id": 1, "c": value}], wanted.scan().to_arrow().schema)
    table.append({"id": [0]})
    table.append(given, evolve_schema=True)
    assert table.scan("id = 1").to_arrow().equals(given)
    assert table.scan("id = 0").to_arrow()["c"].to_pylist() == [None]


def test_schema_evolution_names_unsupported_columns_and_changes_nothing(lake: tl.Lakehouse) -> None:
    version = lake.version
    unknown = pa.table({"id": [1], "nothing": pa.nulls(1), "odd": pa.array([1], pa.duration("s"))})
    with pytest.raises(
        tl.InvalidArgument, match=r"column nothing cannot be added: .*null.*; column odd cannot be added"
    ):
        lake.table("a.t").append(unknown, evolve_schema=True)
    with pytest.raises(tl.InvalidArgument, match="column id: cannot cast"):
        lake.table("a.t").append({"id": ["text"], "more": [1]}, evolve_schema=True)
    assert lake.version == version
    assert list(lake.table("a.t").schema.names) == ["id", "name"]
    with pytest.raises(tl.InvalidArgument, match="evolve_schema must be True or False"):
        lake.table("a.t").append(ROWS, evolve_schema="yes")  # type: ignore[arg-type]


def test_an_open_transaction_keeps_the_change_to_itself(lake: tl.Lakehouse) -> None:
    txn = lake.begin()
    txn.table("a.t").append({"id": [1], "more": [1]}, evolve_schema=True)
    assert list(txn.table("a.t").schema.names) == ["id", "name", "more"]
    assert list(lake.table("a.t").schema.names) == ["id", "name"]
    txn.rollback()
    assert list(lake.table("a.t").schema.names) == ["id", "name"]


def test_two_that_add_the_same_column_both_land(lake: tl.Lakehouse) -> None:
    """The second of two appends that add the same column does not add it again."""
    real, races = lake._handle.begin, iter(range(1))

    def begin(**options: Any) -> tl.Transaction:
        txn = real(**options)
        if next(races, None) is not None:
            with real() as other:
                other.table("a.t").append({"id": [1], "more": [1]}, evolve_schema=True)
        return txn

    table = lake.table("a.t")
    lake._handle.begin = begin  # type: ignore[method-assign]
    table.append({"id": [2], "more": [2]}, evolve_schema=True)
    assert [row["more"] for row in rows(lake)] == [1, 2]


def test_a_stream_may_bring_new_columns(lake: tl.Lakehouse) -> None:
    lake.table("a.parts").append(with_column(iter(ROWS.to_batches(max_chunksize=1))), evolve_schema=True)
    assert [row["more"] for row in rows(lake, "a.parts")] == [1, 1, 1]


# Upsert and merge


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every stream as too large for memory."""
    monkeypatch.setattr("trinitylake.tables.spool.MEMORY_MAX_SIZE_BYTES", 1)


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("kind", STREAMS)
def test_every_stream_is_upserted_and_merged(lake: tl.Lakehouse, kind: str) -> None:
    lake.table("a.t").append({"id": [1, 9], "name": ["old", "kept"]})
    assert lake.table("a.t").upsert(STREAMS[kind](), on=["id"]) == (1, 2)
    assert rows(lake) == [*ROWS.to_pylist(), {"id": 9, "name": "kept"}]
    with lake.transaction() as txn:
        merging = txn.table("a.t").merge(STREAMS[kind](), on="id").when_matched_delete(condition="source.id = 2")
        merging = merging.when_matched_update({"name": "source.name || target.name"}).when_not_matched_insert()
        assert merging.execute() == (2, 1, 0)
    assert [row["name"] for row in rows(lake)] == ["aa", "cc", "kept"]


@pytest.mark.usefixtures("on_disk")
def test_an_upserted_stream_survives_a_lost_race(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader can be read only once, and the upsert is repeated after a conflict."""
    lake.table("a.t").append({"id": [1], "name": ["old"]})
    table = lake.table("a.t")
    rival = tl.open(lake.uri).table("a.t")
    attempts = []
    from trinitylake.tables import table as module

    real = module.merge

    def merge(*args: Any, **kwargs: Any) -> Any:
        done = real(*args, **kwargs)
        attempts.append(done)
        if len(attempts) == 1:
            rival.upsert({"id": [1], "name": ["rival"]}, on=["id"])
        return done

    monkeypatch.setattr(module, "merge", merge)
    assert table.upsert(ROWS.to_reader(max_chunksize=1), on=["id"]) == (1, 2)
    monkeypatch.undo()
    assert len(attempts) == 3
    assert rows(lake) == ROWS.to_pylist()


@pytest.mark.usefixtures("on_disk")
def test_rows_of_a_stream_are_checked_as_those_of_a_table(lake: tl.Lakehouse) -> None:
    table = lake.table("a.t")
    wrong = pa.table({"id": [1, 1 << 40], "name": ["a", "b"]})
    twice = pa.table({"id": [3, 1, 3], "name": ["a", "b", "c"]})
    more = pa.table({"id": [1], "other": ["a"]})
    for data, words in ((wrong, "column id: cannot cast"), (twice, r"\(id=3\)"), (more, "has no column other")):
        for given in (data, data.to_reader(max_chunksize=1)):
            with pytest.raises(tl.InvalidArgument, match=words):
                table.upsert(given, on=["id"])
    assert rows(lake) == []


def test_rows_are_chosen_out_of_batches() -> None:
    source = np.random.default_rng(1)
    whole = pa.table({"id": range(100), "text": [str(one) for one in range(100)]})
    parts = pa.concat_tables([whole.slice(0, 7), whole.slice(7, 0), whole.slice(7, 60), whole.slice(67)])
    for numbers in (source.integers(0, 100, 300), np.array([], dtype=np.int64), np.array([99]), np.arange(100)[::-1]):
        assert take_rows(parts, numbers).to_pylist() == whole.take(pa.array(numbers)).to_pylist()


UPSERT_PEAK = """
import sys
import numpy, pyarrow as pa, pyarrow.compute as pc, trinitylake as tl

table, count = tl.open(sys.argv[1]).table(sys.argv[2]), int(sys.argv[3])

def batches():
    for number in range(count):
        ids = pa.array(numpy.arange(number * 50_000, (number + 1) * 50_000))
        yield pa.RecordBatch.from_pydict({"id": ids, "text": pc.utf8_lpad(ids.cast(pa.string()), 240, "0")})

table.upsert(batches(), on=["id"])
print(pa.default_memory_pool().max_memory() >> 20)
"""


def test_memory_of_an_upsert_does_not_grow_with_what_rows_hold(lake: tl.Lakehouse) -> None:
    """Keys stay in memory, rows in a file. Pages of the file that the system caches are not counted."""
    few, many = 14, 34
    for count in (few, many):
        lake.create_table(f"a.n{count}", pa.schema([("id", pa.int64()), ("text", pa.string())]))
        lake.alter_table(f"a.n{count}", {"write.target-file-size-bytes": str(16 << 20)})
    [small], [large] = (peaks(lake, UPSERT_PEAK, f"a.n{count}", str(count)) for count in (few, many))
    assert large - small < 130, (small, large)  # of 250 MB more
    assert lake.table(f"a.n{many}").scan().count() == many * 50_000


def test_few_rows_are_written_as_their_table_says(tmp_path: Path) -> None:
    """The cached settings for writing files follow the properties of the table and its columns."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    plain = lake.create_table("a.plain", ROWS)
    named = lake.create_table("a.named", ROWS, properties={"write.parquet.compression-codec": "zstd"})
    other = lake.create_table(
        "a.other",
        ROWS,
        properties={"write.parquet.compression-codec": "snappy", "write.metadata.metrics.default": "none"},
    )
    for table in (plain, named, other, plain):
        table.append(ROWS.to_reader())

    for table, codec, has_bounds in ((plain, "ZSTD", True), (named, "ZSTD", True), (other, "SNAPPY", False)):
        for task in lake.table(table.name).iceberg.scan().plan_files():
            file = pq.ParquetFile(task.file.file_path.removeprefix("file://"))
            assert file.metadata.row_group(0).column(0).compression == codec
            assert bool(task.file.lower_bounds) == has_bounds
            assert [(one.name, one.metadata[b"PARQUET:field_id"]) for one in file.schema_arrow] == [
                ("id", b"1"),
                ("name", b"2"),
            ]
    with plain.update_schema() as update:
        update.add_column("n", LongType())
    plain.append(ROWS.append_column("n", pa.array([1, 2, 3])).to_reader())
    assert {len(pq.read_schema(path)) for path in data_files(lake.table("a.plain"))} == {2, 3}
    assert lake.table("a.plain").scan().count() == 9
    plain.append(ROWS.slice(0, 0))
    assert lake.table("a.plain").scan().count() == 9
    assert len(lake.table("a.plain").snapshots()) == 3, "an append of no rows makes no snapshot"


def test_files_after_a_change_of_properties_are_written_by_them(tmp_path: Path) -> None:
    """The settings for writing files are computed once for each schema and properties."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS.schema)
    with lake.transaction() as txn:
        table = txn.table("a.t")
        table.append(ROWS)
        txn.alter_table(table.name, {"write.parquet.compression-codec": "snappy"})
        table.append(ROWS)
    codecs = {pq.read_metadata(path).row_group(0).column(0).compression for path in data_files(lake.table("a.t"))}
    assert codecs == {"ZSTD", "SNAPPY"}


def data_files(table: tl.Table) -> list[str]:
    return [task.file.file_path.removeprefix("file://") for task in table.iceberg.scan().plan_files()]


def test_ids_that_are_uuids_are_appended_as_a_stream(lake: tl.Lakehouse) -> None:
    """Arrow's function for the choice of dictionaries does not know this type."""
    ids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([number]) * 16 for number in range(3)], pa.binary(16))
    )
    lake.create_table("a.ids", pa.schema([("id", pa.uuid())]))
    lake.table("a.ids").append(pa.table({"id": ids}).to_reader())
    assert lake.table("a.ids").scan().count() == 3


class GivenUp(Exception):
    """An exception of user code."""


@pytest.mark.sample(8)
@pytest.mark.parametrize("write", ["append", "overwrite", "upsert", "in a transaction"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), GivenUp("no more"), ValueError("odd")])
@pytest.mark.parametrize("kind", ["reader", "stream"])
def test_exceptions_of_user_code_reach_the_caller(
    lake: tl.Lakehouse, kind: str, error: BaseException, write: str
) -> None:
    """As `InvalidArgument`, a Ctrl-C in the user's generator would look like wrong rows."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches(max_chunksize=1)
        raise error

    reader = pa.RecordBatchReader.from_batches(ROWS.schema, batches())
    data: Any = reader
    if kind == "stream":
        data = Once(ROWS)
        data.reader = reader
    is_itself = kind == "reader" or isinstance(error, KeyboardInterrupt)
    expected = type(error) if is_itself else tl.errors.InvalidArgument

    def written() -> None:
        if write == "in a transaction":
            with lake.transaction() as txn:
                txn.table("a.t").append(data)
            return
        options: dict[str, Any] = {"on": "id"} if write == "upsert" else {}
        getattr(lake.table("a.t"), write)(data, **options)

    with pytest.raises(expected) as raised:
        written()
    assert is_itself or type(error).__name__ in str(raised.value)
    assert rows(lake) == [], "nothing of it was committed"


def test_python_objects_of_polars_are_refused(lake: tl.Lakehouse) -> None:
    """Polars gives Arrow the memory addresses of Python objects as values."""
    table = lake.create_table("a.blobs", {"a": "blob"})
    frame = pl.DataFrame({"a": pl.Series([{"x": 1}, "q"], dtype=pl.Object)})
    for schema in (frame, frame.lazy(), frame.schema, {"a": pl.Object}):
        with pytest.raises(tl.InvalidArgument, match="polars holds Python objects"):
            lake.create_table("a.u", schema)
    for rows in (frame, frame.lazy(), {"a": frame["a"]}):
        with pytest.raises(tl.InvalidArgument, match="polars holds Python objects"):
            table.append(rows)
    assert table.count() == 0
