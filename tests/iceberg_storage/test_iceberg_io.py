"""PyIceberg's file access over the storage of a lakehouse, restricted to its root."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from iceberg_storage import STORES, RemoteStorage, Store, make_store
from trinitylake.errors import CorruptFile, InvalidLocation
from trinitylake.iceberg_storage import file_io as io_module
from trinitylake.iceberg_storage import remote_reads
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.remote_reads import RangeReader


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


@pytest.fixture
def file_io(store: Store) -> LakehouseFileIO:
    return LakehouseFileIO(store)


def write(file_io: LakehouseFileIO, path: str, data: bytes, overwrite: bool = False) -> None:
    with file_io.new_output(file_io.uri_of(path)).create(overwrite=overwrite) as stream:
        stream.write(data)


def read(file_io: LakehouseFileIO, path: str) -> bytes:
    with file_io.new_input(file_io.uri_of(path)).open() as stream:
        return bytes(stream.read())


NAMES = ["ns/t/data/a.parquet", "t/metadata/b.avro", "x/p=a%2Fb c/é#?.parquet", "+&'();=@[]~$,!.bin"]


@pytest.mark.parametrize("path", NAMES)
def test_written_bytes_are_read(file_io: LakehouseFileIO, store: Store, path: str) -> None:
    write(file_io, path, b"data of " + path.encode())
    assert read(file_io, path) == store.get(path) == b"data of " + path.encode()
    file = file_io.new_input(file_io.uri_of(path))
    assert (len(file), file.exists()) == (len(store.get(path)), True)
    file_io.delete(file)
    assert not file.exists()


def test_a_missing_file_is_a_file_not_found_error(file_io: LakehouseFileIO) -> None:
    for suffix in ("avro", "parquet"):
        file = file_io.new_input(file_io.uri_of(f"missing.{suffix}"))
        assert not file.exists()
        with pytest.raises(FileNotFoundError):
            file.open()
        with pytest.raises(FileNotFoundError):
            len(file)


def test_a_file_is_written_once(file_io: LakehouseFileIO, store: Store) -> None:
    write(file_io, "a.avro", b"one")
    with pytest.raises(FileExistsError):
        file_io.new_output(file_io.uri_of("a.avro")).create()
    write(file_io, "a.avro", b"two", overwrite=True)
    assert read(file_io, "a.avro") == b"two", "a file that this object wrote may be replaced"
    other = file_io.scoped()
    with pytest.raises(FileExistsError):
        write(other, "a.avro", b"three", overwrite=True)
    assert other.written_paths == [], "a rollback must not delete the file of another object"
    assert read(file_io, "a.avro") == b"two"


def test_a_stream_that_failed_or_was_forgotten_leaves_no_file(file_io: LakehouseFileIO, store: Store) -> None:
    def fail() -> None:
        with file_io.new_output(file_io.uri_of("a.parquet")).create() as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    stream = file_io.new_output(file_io.uri_of("b.parquet")).create()
    stream.write(b"half")
    del stream
    assert store.list("") == []
    assert file_io.written_paths == []


def test_written_files_are_remembered_until_they_are_deleted(file_io: LakehouseFileIO) -> None:
    for path in ("a", "b", "c"):
        write(file_io, path, b"x")
    file_io.delete(file_io.uri_of("b"))
    assert file_io.written_paths == ["a", "c"]
    assert file_io.scoped().written_paths == []


def test_a_failed_write_is_remembered_because_it_may_have_happened() -> None:
    class Failing(RemoteStorage):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            raise TimeoutError("no reply")

    file_io = LakehouseFileIO(Failing())
    with pytest.raises(TimeoutError):
        write(file_io, "a", b"x")
    assert file_io.written_paths == ["a"]


OUTSIDE = ["", "other/x", "lakes/x", "lake", "lake/", "lake/../x", "lake/./x", "lake//x", "lake/a/../../x", "lake/a/.."]


@pytest.mark.parametrize("tail", OUTSIDE)
@pytest.mark.parametrize("root", ["s3://bucket/lake/", "file:///tmp/lake/", "memory://one/lake/"])
def test_nothing_outside_of_the_root_is_touched(root: str, tail: str) -> None:
    store = RemoteStorage(root)
    file_io = LakehouseFileIO(store)
    location = root.removesuffix("lake/") + tail
    for use in (file_io.new_input, file_io.new_output, file_io.delete, file_io.path_of):
        with pytest.raises(InvalidLocation):
            use(location)
    assert store.requests == {}


def test_other_stores_are_outside() -> None:
    file_io = LakehouseFileIO(RemoteStorage("s3://bucket/lake/"))
    for location in (
        "s3://bucket2/lake/x",
        "gs://bucket/lake/x",
        "/bucket/lake/x",
        "lake/x",
        "x",
        "http://bucket/lake/x",
    ):
        with pytest.raises(InvalidLocation):
            file_io.path_of(location)


@pytest.mark.parametrize(
    ("root", "location"),
    [
        ("s3://bucket/lake/", "s3a://bucket/lake/a/b"),
        ("s3://bucket/lake/", "s3n://bucket/lake/a/b"),
        ("s3a://bucket/lake/", "s3://bucket/lake/a/b"),
        ("file:///tmp/lake/", "file:/tmp/lake/a/b"),
        ("file:///tmp/lake/", "/tmp/lake/a/b"),
        ("file:///tmp/lake/", "file://localhost/tmp/lake/a/b"),
        ("gs://bucket/lake/", "gs://bucket/lake/a/b"),
        ("abfss://c@account.dfs.core.windows.net/lake/", "abfs://c@account.dfs.core.windows.net/lake/a/b"),
    ],
)
def test_spellings_of_one_place_are_equal(root: str, location: str) -> None:
    file_io = LakehouseFileIO(RemoteStorage(root))
    assert file_io.path_of(location) == "a/b"
    assert file_io.path_of(file_io.uri_of("a/b")) == "a/b"


@given(st.text())
def test_any_text_is_below_the_root_or_refused(text: str) -> None:
    file_io = LakehouseFileIO(RemoteStorage("file:///tmp/lake/"))
    for location in (text, "file:///tmp/lake/" + text):
        try:
            path = file_io.path_of(location)
        except InvalidLocation:
            continue
        assert not {"", ".", ".."} & set(path.split("/"))
        assert canonical_uri(location) == canonical_uri(file_io.uri_of(path))


def test_a_link_does_not_lead_out_of_a_local_root(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "secret.avro").write_bytes(b"secret")
    (tmp_path / "lake" / "link.avro").symlink_to(tmp_path / "secret.avro")
    (tmp_path / "lake" / "folder").symlink_to(tmp_path)
    file_io = LakehouseFileIO(make_store("disk", tmp_path / "lake"))
    for path in ("link.avro", "folder/secret.avro"):
        with pytest.raises(InvalidLocation, match="is a symbolic link"):
            file_io.new_input(file_io.uri_of(path)).open()


@pytest.mark.parametrize("what", ["folder", "pipe", "link in a circle"])
def test_only_regular_files_exist(tmp_path: Path, what: str, request: pytest.FixtureRequest) -> None:
    """A scan must not wait for a pipe in the place of a manifest, or raise Arrow's error for a folder."""
    place = tmp_path / "lake" / "m.avro"
    place.parent.mkdir()
    if what == "folder":
        place.mkdir()
    elif what == "pipe":
        os.mkfifo(place)
        held = os.open(place, os.O_RDWR)  # a reader of the pipe need not wait, so that the test ends
        request.addfinalizer(lambda: os.close(held))
    else:
        place.symlink_to(place)
    file_io = LakehouseFileIO(make_store("disk", tmp_path / "lake"))
    with pytest.raises(FileNotFoundError, match=r"m\.avro"):
        file_io.new_input(file_io.uri_of("m.avro")).open()


def test_small_file_and_its_size_cost_one_request() -> None:
    store = RemoteStorage()
    file_io = LakehouseFileIO(store)
    store.files.update({"a.avro": b"x" * 100, "b.parquet": b"y" * 100})
    assert read(file_io, "a.avro") == b"x" * 100
    assert store.requests == {"get": 1}
    store.requests.clear()
    assert read(file_io, "b.parquet") == b"y" * 100
    assert store.requests == {"get_end": 1}


def test_the_size_of_a_file_just_written_costs_nothing() -> None:
    store = RemoteStorage()
    output = LakehouseFileIO(store).new_output("s3://bucket/lake/a.parquet")
    with output.create(overwrite=True) as stream:
        stream.write(b"12345")
    assert len(output) == 5
    assert store.requests == {"put": 1}


def test_a_large_parquet_file_is_read_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_module, "WHOLE_FILE_MAX_SIZE_BYTES", 1000)
    monkeypatch.setattr(remote_reads, "READ_AHEAD_SIZE_BYTES", 4096)
    store = RemoteStorage()
    table = pa.table({name: pa.array(range(100_000), pa.int64()) for name in "abcd"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    store.files["t.parquet"] = sink.getvalue().to_pybytes()
    with LakehouseFileIO(store).new_input("s3://bucket/lake/t.parquet").open() as stream:
        assert pq.read_table(stream, columns=["c"]) == table.select(["c"])
    assert store.requests["get_range"] < 20
    assert set(store.requests) == {"get_end", "get_range"}


def test_a_file_that_was_replaced_by_a_shorter_one_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file that is read in ranges is replaced by a shorter file, the read fails instead of ending early."""
    monkeypatch.setattr(io_module, "WHOLE_FILE_MAX_SIZE_BYTES", 10)
    store = RemoteStorage()
    store.files["t.parquet"] = b"x" * 1000
    with LakehouseFileIO(store).new_input("s3://bucket/lake/t.parquet").open() as stream:
        store.files["t.parquet"] = b"y" * 100
        with pytest.raises(CorruptFile, match="ends before its 1000 bytes"):
            stream.read()


def test_columns_that_are_expected_are_fetched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected columns of a file are fetched in one round. Arrow would read one column after the other."""
    monkeypatch.setattr(io_module, "WHOLE_FILE_MAX_SIZE_BYTES", 70_000)  # Arrow asks for 64 KiB first
    monkeypatch.setattr(remote_reads, "HOLE_MAX_SIZE_BYTES", 100)
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 60, 20_000))
    pairs = pa.array([[("key", number)] for number in numbers.to_pylist()], pa.map_(pa.string(), pa.int64()))
    arrays = [
        numbers,
        pa.StructArray.from_arrays([numbers, numbers], names=["x", "y"]),
        pa.ListArray.from_arrays(pa.array(range(20_001), pa.int32()), numbers),
        pairs,
        numbers,
    ]
    schema = Schema(
        NestedField(1, "a", LongType()),
        NestedField(2, "s", StructType(NestedField(3, "x", LongType()), NestedField(4, "y", LongType()))),
        NestedField(5, "l", ListType(6, LongType(), element_required=False)),
        NestedField(7, "m", MapType(8, StringType(), 9, LongType(), value_required=False)),
        NestedField(10, "z", LongType()),
    )
    table = pa.table(dict(zip("aslmz", arrays, strict=True))).cast(schema.as_arrow())
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False, row_group_size=10_000)
    data = sink.getvalue().to_pybytes()
    end = data[-70_000:]
    store = RemoteStorage()
    store.files["t.parquet"] = data
    location = "s3://bucket/lake/t.parquet"
    for ids, columns in (
        ({1, 4, 10}, ["a", "s.y", "z"]),
        ({6, 8, 9}, ["l", "m"]),
        ({3, 9}, ["s.x", "m.key_value.value"]),
    ):
        file_io = LakehouseFileIO(store)
        file_io.expect_columns([location], ids)
        with file_io.new_input(location).open() as stream:
            store.requests.clear()
            assert pq.ParquetFile(stream, pre_buffer=True).read(columns).num_rows == 20_000
        assert store.requests == {}, "all columns were fetched before"
    assert remote_reads.column_ranges(end, len(data), {77}) == []
    assert remote_reads.column_ranges(end[-20:], len(data), {1}) == [], "the end does not contain the whole footer"
    assert remote_reads.column_ranges(b"nonsense" * 100, 800, {1}) == []
    monkeypatch.setattr(remote_reads, "MAX_COLUMNS_SIZE_BYTES", 1000)
    assert remote_reads.column_ranges(end, len(data), {1}) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 80)),
        st.tuples(st.just("seek"), st.integers(0, 120)),
        st.tuples(st.just("skip"), st.integers(0, 30)),
        st.tuples(st.just("back"), st.integers(0, 50)),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(st.binary(max_size=100), STEPS, st.integers(1, 40), st.integers(0, 60), st.sets(st.integers(0, 99), max_size=4))
def test_a_range_reader_reads_as_a_file_does(
    data: bytes, steps: list[tuple[str, int]], read_ahead: int, at_hand: int, starts: set[int]
) -> None:
    store = RemoteStorage()
    store.files["f"] = data
    files = LakehouseFileIO(store)
    previous = remote_reads.READ_AHEAD_SIZE_BYTES
    remote_reads.READ_AHEAD_SIZE_BYTES = read_ahead
    try:
        end = data[max(len(data) - at_hand, 0) :]
        parts = [(start, data[start : start + 9]) for start in starts if start < len(data)]
        expected, actual = io.BytesIO(data), RangeReader(files.read_range, "f", len(data), end, parts)
        for step, number in steps:
            if step == "read":
                assert actual.read(number) == expected.read(number)
            elif step == "seek":
                assert actual.seek(number) == expected.seek(number)
            elif step == "skip":
                assert actual.seek(number, 1) == expected.seek(number, 1)
            elif number <= len(data):
                assert actual.seek(-number, 2) == expected.seek(-number, 2)
            assert actual.tell() == expected.tell()
        buffered = io.BufferedReader(RangeReader(files.read_range, "f", len(data), end, parts))
        assert buffered.read() == data
    finally:
        remote_reads.READ_AHEAD_SIZE_BYTES = previous


def test_properties_are_kept_for_pyiceberg() -> None:
    properties = {"a": "b"}
    file_io = LakehouseFileIO(RemoteStorage(), properties)
    properties["a"] = "changed"
    assert (file_io.properties, file_io.scoped().properties) == ({"a": "b"}, {"a": "b"})
