"""The estimated memory of parsed metadata is an upper limit, and Avro files of other writers have size limits."""

from __future__ import annotations

import gc
import json
import tracemalloc
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile, write_manifest, write_manifest_list
from pyiceberg.table.snapshots import Snapshot

import trinitylake as tl
from manifests_by_hand import Blocks, avro_file, avro_parts, data_file
from trinitylake.base.json_memory_size import count_values
from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed, parsed_size_bytes, sized
from trinitylake.iceberg_storage.manifests import manifest_file
from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget, SizeLimitExceeded
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.metadata import parsed

# Parsed metadata: its memory was estimated as eighteen times the length of the JSON. Columns with short names take
# twenty-seven times as much, and maps nearly forty times.


N = 500


def columns(type: Any, n: int = N, **more: Any) -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{id:x}", "type": type(id), **more} for id in range(1, n + 1)]


def metadata(fields: list[dict[str, Any]], **more: Any) -> bytes:
    document = {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": "file:///x",
        "last-sequence-number": 1,
        "last-updated-ms": 1,
        "last-column-id": 100 * N,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 10 * N,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        **more,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def a_map(id: int) -> dict[str, Any]:
    return {"type": "map", "key-id": N + id, "key": "int", "value-id": 2 * N + id, "value": "int"}


ONE = columns(lambda _: "int", 1, required=True)
PARTITIONS = [
    {"source-id": id, "field-id": 999 + id, "name": f"p{id}", "transform": "identity"} for id in range(1, N + 1)
]
ORDER = {"transform": "identity", "direction": "asc", "null-order": "nulls-first"}
ORDERS = [{"source-id": id, **ORDER} for id in range(1, N + 1)]
SNAPSHOT = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": "s", "schema-id": 0}
FILE = {"snapshot-id": 1, "statistics-path": "s", "file-size-in-bytes": 1}
SHAPES = {
    "columns": metadata(columns(lambda _: "int", required=True)),
    "columns that say little": metadata(columns(lambda _: "int")),
    "decimals": metadata(columns(lambda _: "decimal(9,2)", required=True)),
    "lists": metadata(
        columns(lambda id: {"type": "list", "element-id": N + id, "element": "int", "element-required": True})
    ),
    "maps": metadata(columns(a_map)),
    "maps that say all": metadata(columns(lambda id: a_map(id) | {"value-required": True}, required=True)),
    "structs": metadata(
        columns(lambda id: {"type": "struct", "fields": [{"id": N + id, "name": "a", "type": "int", "required": True}]})
    ),
    "empty structs": metadata(columns(lambda _: {"type": "struct", "fields": []})),
    "partitions": metadata(
        columns(lambda _: "int", required=True), **{"partition-specs": [{"spec-id": 0, "fields": PARTITIONS}]}
    ),
    "orders": metadata(
        columns(lambda _: "int", required=True),
        **{"default-sort-order-id": 1, "sort-orders": [{"order-id": 1, "fields": ORDERS}]},
    ),
    "schemas": metadata(
        ONE, schemas=[{"type": "struct", "schema-id": id, "fields": ONE} for id in range(N)], **{"last-column-id": 1}
    ),
    "properties": metadata(ONE, properties={f"{id:x}": "" for id in range(5 * N)}),
    "snapshots": metadata(
        ONE, snapshots=[{**SNAPSHOT, "snapshot-id": id, "summary": {"operation": "append"}} for id in range(1, N)]
    ),
    "log": metadata(ONE, **{"metadata-log": [{"metadata-file": "a", "timestamp-ms": 1} for _ in range(N)]}),
    "branches": metadata(
        ONE,
        snapshots=[{**SNAPSHOT, "summary": {"operation": "append"}}],
        **{"current-snapshot-id": 1, "refs": {f"{id:x}": {"snapshot-id": 1, "type": "branch"} for id in range(N)}},
    ),
    "statistics": metadata(
        ONE, statistics=[{**FILE, "file-footer-size-in-bytes": 1, "blob-metadata": []} for _ in range(N)]
    ),
    "statistics of partitions": metadata(ONE, **{"partition-statistics": [FILE for _ in range(N)]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_counted_size_of_metadata_is_at_least_its_memory(shape: str) -> None:
    text = SHAPES[shape]
    indexed(parsed(text))  # fills caches
    gc.collect()
    tracemalloc.start()
    try:
        found = sized(indexed(parsed(text)), text)
        schema = found.schema()
        schema.find_field(1)  # each of these calls builds an index
        schema.find_column_name(1)
        schema.find_field(schema.fields[0].name.upper(), case_sensitive=False)
        schema.accessor_for_field(1)
        found.snapshot_by_id(1)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken > 3 * len(text), "it was parsed"
    assert taken <= parsed_size_bytes(found), (taken, parsed_size_bytes(found))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_values_of_a_long_text_are_counted(kind: type[bytes | bytearray]) -> None:
    text = kind(b'{"a":[1,2]},' * 200_000)
    assert count_values(text) == 5 * 200_000
    assert count_values(kind()) == 0


# Avro files of other writers


AVRO_SNAPSHOT = 7
#: Position of the length in a record of a manifest list.
MANIFEST_LENGTH = 1


@pytest.fixture
def table(tmp_path: Path) -> tl.Table:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("shop")
    return lake.create_table("shop.orders", {"id": "bigint"})


def manifest_of(table: tl.Table, path: str, n_entries: int, codec: str) -> ManifestFile:
    """A manifest of many files with the same path."""
    with table._writing() as iceberg:
        output = iceberg.io.new_output(f"{iceberg.location()}/metadata/{uuid.uuid4()}-m0.avro")
        with write_manifest(2, iceberg.spec(), iceberg.schema(), output, AVRO_SNAPSHOT, codec) as writer:  # type: ignore[arg-type]
            for _ in range(n_entries):
                added = ManifestEntryStatus.ADDED
                writer.add_entry(
                    ManifestEntry.from_args(status=added, snapshot_id=AVRO_SNAPSHOT, data_file=data_file(path))
                )
        return writer.to_manifest_file()


@pytest.mark.parametrize("codec", ["null", "gzip", "zstd", "bzip2"])
def test_decompressed_size_of_a_manifest_counts(table: tl.Table, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine megabytes can contain half a gigabyte of paths, for which a reader takes 1.5 GB."""
    manifest = manifest_of(table, "s3://b/" + "a" * 100_000, 100, codec)
    io = table.iceberg.io
    data = io.new_input(manifest.manifest_path).open().read()
    if codec != "null":
        assert len(data) < 1_000_000
    everything = SizeBudget(1 << 30, 1000)
    everything.spend(data, "")
    assert 10_000_000 < (1 << 30) - everything.size_bytes < 11_000_000
    assert everything.entries == 900
    for less in (SizeBudget(9_000_000), SizeBudget(1 << 30, 99)):
        with pytest.raises(SizeLimitExceeded):
            less.spend(data, "")
    assert len(read_entries(io, manifest)) == 100
    monkeypatch.setattr(manifest_file, "MAX_MANIFEST_SIZE_BYTES", 9_000_000)
    with pytest.raises(SizeLimitExceeded, match="exceeds the limit on bytes that one request reads"):
        read_entries(io, manifest)


def test_decompressed_size_of_a_snappy_block_is_read_from_it() -> None:
    header = b"Obj\x01\x02\x14avro.codec\x0csnappy\x00" + bytes(16)
    block = b"\x02\x08\xc0\x96\xb1\x02" + bytes(16)  # one entry in four bytes that state a size of 5,000,000
    allowance = SizeBudget(6_000_000, 10)
    allowance.spend(header + block, "")
    assert (allowance.size_bytes, allowance.entries) == (1_000_000 - len(header) + 16, 9)


def test_truncated_file_or_unknown_codec_is_an_error(table: tl.Table) -> None:
    manifest = manifest_of(table, "s3://b/a", 3, "gzip")
    data = table.iceberg.io.new_input(manifest.manifest_path).open().read()
    for length in (4, 5, 100, len(data) - 17):
        with pytest.raises(ValueError, match="cut off"):
            SizeBudget(1 << 30).spend(data[:length], "")
    with pytest.raises(ValueError, match="unknown codec"):
        SizeBudget(1 << 30).spend(data.replace(b"\x0edeflate", b"\x0edeflatx"), "")
    SizeBudget(10).spend(b"no Avro", "")
    with pytest.raises(SizeLimitExceeded):
        SizeBudget(6).spend(b"no Avro", "")


@pytest.mark.parametrize("name", ["*-m0.avro", "snap-*.avro"])
def test_error_names_the_damaged_manifest(tmp_path: Path, name: str) -> None:
    """It only repeated an error of the decoder such as `KeyError: 'avro.schema'`."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"id": "bigint"}).append({"id": [1]})
    [file] = (tmp_path / "lake").rglob(name)
    whole = file.read_bytes()
    damaged = [bytes(len(whole)), b"", b"no Avro", *(whole[:length] for length in range(4, len(whole), 97))]
    damaged += [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), 53)]
    for data in damaged:
        file.write_bytes(data)
        for read in (lambda: lake.table("a.t").scan().to_arrow(), lambda: lake.table("a.t").scan().count()):
            # A damaged path in the manifest is the path of another file, in the lakehouse or outside of it.
            with suppress(CorruptFile, tl.errors.InvalidLocation):
                read()
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(CorruptFile, match=file.name) as caught:
        lake.table("a.t").scan().to_arrow()
    assert file.name in caught.value.path


def snapshot_with(manifest_list: str) -> Snapshot:
    return Snapshot.model_validate({"snapshot-id": AVRO_SNAPSHOT, "timestamp-ms": 1, "manifest-list": manifest_list})


def test_a_manifest_counts_once(table: tl.Table) -> None:
    """A list of three kilobytes that names a manifest several times could occupy a commit for an hour."""
    manifest = manifest_of(table, "s3://b/a", 3, "gzip")
    with table._writing() as iceberg:
        for n_times in (1, 2):
            uri = f"{iceberg.location()}/metadata/snap-{n_times}.avro"
            with write_manifest_list(2, iceberg.io.new_output(uri), AVRO_SNAPSHOT, None, 1, "gzip") as writer:
                writer.add_manifests([manifest] * n_times)
    assert len(read_list(iceberg.io, snapshot_with(uri.replace("snap-2", "snap-1")))) == 1
    with pytest.raises(CorruptFile, match="names a manifest twice"):
        read_list(iceberg.io, snapshot_with(uri))


def written(table: tl.Table, change: Callable[[dict[bytes, bytes], Blocks], None], codec: str = "null") -> ManifestFile:
    """A manifest of three files, whose header and blocks are changed by `change`."""
    manifest = manifest_of(table, "s3://b/a", 3, codec)
    file = Path(manifest.manifest_path.removeprefix("file://"))
    header, blocks = avro_parts(file.read_bytes())
    change(header, blocks)
    file.write_bytes(avro_file(header, blocks))
    manifest[MANIFEST_LENGTH] = file.stat().st_size
    return manifest


def test_data_after_an_empty_block_is_an_error(table: tl.Table) -> None:
    """If the check stopped at the block, but copying did not, an entry could name a file of another table."""

    def hide(header: dict[bytes, bytes], blocks: Blocks) -> None:
        blocks.insert(1, (0, b""))

    with pytest.raises(CorruptFile, match="data after an empty block"):
        read_entries(table.iceberg.io, written(table, hide))
    at_the_end = written(table, lambda header, blocks: blocks.append((0, b"")))
    assert len(read_entries(table.iceberg.io, at_the_end)) == 3


def test_header_counts_and_its_schema_has_a_limit(table: tl.Table) -> None:
    """Parsing a header of 30 MB takes a gigabyte, and parsed schemas are cached."""

    def with_schema(change: Callable[[dict[str, object]], object]) -> ManifestFile:
        def changed(header: dict[bytes, bytes], blocks: Blocks) -> None:
            schema = json.loads(header[b"avro.schema"])
            change(schema)
            header[b"avro.schema"] = json.dumps(schema).encode()

        return written(table, changed)

    io = table.iceberg.io
    assert len(read_entries(io, with_schema(lambda schema: schema.update(doc="x" * 100_000)))) == 3
    for odd in (
        with_schema(lambda schema: schema.update(doc="x" * 5_000_000)),
        with_schema(lambda schema: schema.update(doc=[[]] * 12_000)),
    ):
        with pytest.raises(SizeLimitExceeded):
            read_entries(io, odd)
    long = written(table, lambda header, blocks: header.update({b"comment": b"x" * 1_000_000}))
    allowance = SizeBudget(2_000_000)
    allowance.spend(io.new_input(long.manifest_path).open().read(), "")
    assert allowance.size_bytes < 1_000_000


def test_schema_with_endless_nesting_is_an_error(table: tl.Table) -> None:
    nested = written(table, lambda header, blocks: header.update({b"avro.schema": b"[" * 2000 + b"]" * 2000}))
    with pytest.raises(CorruptFile, match="nests too deeply"):
        read_entries(table.iceberg.io, nested)


@pytest.mark.parametrize("id", [100, 999])
def test_field_with_the_id_of_another_name_is_an_error(table: tl.Table, id: int) -> None:
    """PyIceberg, Spark and readers by name would take different fields."""

    def name_twice(header: dict[bytes, bytes], blocks: Blocks) -> None:
        schema = json.loads(header[b"avro.schema"])
        fields = next(field for field in schema["fields"] if field["name"] == "data_file")["type"]["fields"]
        path = next(field for field in fields if field["name"] == "file_path")
        if id == path["field-id"]:
            fields.insert(0, {**path, "name": "of_another_table"})
        else:
            path["field-id"] = id
        header[b"avro.schema"] = json.dumps(schema).encode()

    with pytest.raises(
        CorruptFile, match="two fields with the same id" if id == 100 else "'file_path' with the id 999"
    ):
        read_entries(table.iceberg.io, written(table, name_twice))


def test_manifest_list_with_ambiguous_fields_is_an_error(table: tl.Table) -> None:
    manifest = manifest_of(table, "s3://b/a", 1, "null")
    with table._writing() as iceberg:
        uri = f"{iceberg.location()}/metadata/snap-{uuid.uuid4()}.avro"
        with write_manifest_list(2, iceberg.io.new_output(uri), AVRO_SNAPSHOT, None, 1, "null") as writer:
            writer.add_manifests([manifest])
    file = Path(uri.removeprefix("file://"))
    header, blocks = avro_parts(file.read_bytes())
    schema = json.loads(header[b"avro.schema"])
    path = next(field for field in schema["fields"] if field["name"] == "manifest_path")
    schema["fields"].append({**path, "field-id": 999})
    path["name"] = "of_another_table"
    header[b"avro.schema"] = json.dumps(schema).encode()
    file.write_bytes(avro_file(header, blocks))
    with pytest.raises(CorruptFile, match="'of_another_table' with the id 500"):
        read_list(iceberg.io, snapshot_with(uri))


def test_a_block_counts_as_an_entry() -> None:
    """Otherwise 64 MB of empty blocks would occupy a request for ten seconds."""
    blocks: Blocks = [(1, b"")] * 50 + [(0, b"")]
    allowance = SizeBudget(1 << 20, 100)
    allowance.spend(avro_file({b"avro.codec": b"null"}, blocks), "")
    assert allowance.entries == 49
