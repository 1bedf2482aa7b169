"""What others have written is weighed before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.manifest import (
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)

import trinitylake as tl
from manifests_by_hand import data_file
from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.extended_pyiceberg import manifest as reading
from trinitylake.iceberg_storage.extended_pyiceberg.avro_weight import Allowance, TooHeavy

SNAPSHOT = 7


@pytest.fixture
def table(tmp_path: Path) -> tl.Table:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("shop")
    return lake.create_table("shop.orders", {"id": "bigint"})


def manifest_of(table: tl.Table, path: str, n_entries: int, codec: str) -> ManifestFile:
    """A manifest of many files with the same path."""
    with table.writing() as iceberg:
        output = iceberg.io.new_output(f"{iceberg.location()}/metadata/{codec}-m0.avro")
        with write_manifest(2, iceberg.spec(), iceberg.schema(), output, SNAPSHOT, codec) as writer:  # type: ignore[arg-type]
            for _ in range(n_entries):
                added = ManifestEntryStatus.ADDED
                writer.add_entry(ManifestEntry.from_args(status=added, snapshot_id=SNAPSHOT, data_file=data_file(path)))
        return writer.to_manifest_file()


@pytest.mark.parametrize("codec", ["null", "gzip", "zstd", "bzip2"])
def test_a_small_manifest_of_long_paths_is_as_heavy_as_they_are(
    table: tl.Table, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine megabytes of a manifest held half a gigabyte of paths, and whoever read it took 1.5 GB."""
    manifest = manifest_of(table, "s3://b/" + "a" * 100_000, 100, codec)
    io = table.iceberg.io
    data = io.new_input(manifest.manifest_path).open().read()
    if codec != "null":
        assert len(data) < 1_000_000
    everything = Allowance(1 << 30, 1000)
    everything.spend(data, "")
    assert 10_000_000 < (1 << 30) - everything.size_bytes < 11_000_000
    assert everything.entries == 900
    for less in (Allowance(9_000_000), Allowance(1 << 30, 99)):
        with pytest.raises(TooHeavy):
            less.spend(data, "")
    assert len(reading.read_entries(io, manifest)) == 100
    monkeypatch.setattr(reading, "MAX_MANIFEST_SIZE_BYTES", 9_000_000)
    with pytest.raises(TooHeavy, match="holds more than what is read"):
        reading.read_entries(io, manifest)


def test_a_block_of_snappy_says_how_long_it_is() -> None:
    header = b"Obj\x01\x02\x14avro.codec\x0csnappy\x00" + bytes(16)
    block = b"\x02\x08\xc0\x96\xb1\x02" + bytes(16)  # one entry in four bytes, which say 5,000,000
    allowance = Allowance(6_000_000, 10)
    allowance.spend(header + block, "")
    assert (allowance.size_bytes, allowance.entries) == (1_000_000, 9)


def test_what_is_cut_off_or_unknown_is_an_error(table: tl.Table) -> None:
    manifest = manifest_of(table, "s3://b/a", 3, "gzip")
    data = table.iceberg.io.new_input(manifest.manifest_path).open().read()
    for length in (4, 5, 100, len(data) - 17):
        with pytest.raises(ValueError, match="cut off"):
            Allowance(1 << 30).spend(data[:length], "")
    with pytest.raises(ValueError, match="not known"):
        Allowance(1 << 30).spend(data.replace(b"\x0edeflate", b"\x0edeflatx"), "")
    Allowance(10).spend(b"no Avro", "")
    with pytest.raises(TooHeavy):
        Allowance(6).spend(b"no Avro", "")


def test_a_manifest_counts_once(table: tl.Table) -> None:
    """A list of three kilobytes that named one manifest five thousand times kept a commit busy for an hour."""
    manifest = manifest_of(table, "s3://b/a", 3, "gzip")
    with table.writing() as iceberg:
        for n_times in (1, 2):
            uri = f"{iceberg.location()}/metadata/snap-{n_times}.avro"
            with write_manifest_list(2, iceberg.io.new_output(uri), SNAPSHOT, None, 1, "gzip") as writer:
                writer.add_manifests([manifest] * n_times)
    assert len(reading.read_list(iceberg.io, uri.replace("snap-2", "snap-1"))) == 1
    with pytest.raises(CorruptFile, match="names a manifest twice"):
        reading.read_list(iceberg.io, uri)
