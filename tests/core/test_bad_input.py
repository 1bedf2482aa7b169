"""Invalid input: hints, roots, names, locations and disks. Each raises a typed error with object and reason.

After each error the lakehouse is unchanged: it has no new version, and every old version is readable.
`test_damaged_files.py` tests damaged and hostile *files*.
"""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from conformance.node_writer import KEY, to_bytes, to_rows
from trinitylake import _core, core

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on disk; version 2 has `nyc` and the view `nyc.v`."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("nyc", {"owner": "ops"})
    lake.create_view("nyc.v", "SELECT 1")
    return lake


def folder(lake: tl.Lakehouse) -> Path:
    return Path(lake.uri.removeprefix("file://"))


@contextmanager
def unchanged(lake: tl.Lakehouse) -> Iterator[None]:
    """Check that the block adds no version, and that all versions can be read as before."""

    def state(handle: tl.Lakehouse) -> list[Any]:
        versions = [entry.version for entry in handle.log(None)]
        return [versions, [(handle.at(v).namespaces(), handle.at(v).views()) for v in versions]]

    before = state(lake)
    yield
    assert state(lake) == before
    assert state(tl.open(lake.uri)) == before


# The hint

HINTS = {
    "right": b"2",
    "stale": b"0",
    "with white space": b" 1\n",
    "too large": str(2**64).encode(),
    "enormous": b"9" * 1000,
    "negative": b"-1",
    "a fraction": b"1.5",
    "hexadecimal": b"0x2",
    "other digits": "٢".encode(),
    "text": b"latest",
    "not UTF-8": b"\xff\xfe",
    "zero bytes": b"\0\0",
    "empty": b"",
    "huge": b"2" * (8 << 20),
    "missing": None,
}


def put_hint(lake: tl.Lakehouse, hint: bytes | None) -> None:
    file = folder(lake) / "_latest_hint.txt"
    file.unlink(missing_ok=True)
    if hint is not None:
        file.write_bytes(hint)


@pytest.mark.parametrize("kind", HINTS)
def test_latest_version_is_found_with_any_hint(lake: tl.Lakehouse, kind: str) -> None:
    put_hint(lake, HINTS[kind])
    fresh = tl.open(lake.uri, durability="none")
    assert (fresh.version, fresh.namespaces(), fresh.views()) == (2, ["nyc"], ["nyc.v"])
    fresh.create_namespace("next")
    assert (folder(lake) / "_latest_hint.txt").read_bytes() == b"3", "a commit repairs the hint"
    assert lake.version == 3


@pytest.mark.parametrize("hint", [3, 1_000_000, 2**40, 2**64 - 1])
def test_hint_ahead_of_all_roots_blocks_writes_only(lake: tl.Lakehouse, hint: int) -> None:
    """Otherwise the next commit would reuse the number of a deleted root."""
    put_hint(lake, str(hint).encode())
    with pytest.warns(RuntimeWarning, match="_latest_hint.txt names version"):
        fresh = tl.open(lake.uri, durability="none")
    assert (fresh.version, fresh.namespaces(), fresh.views()) == (2, ["nyc"], ["nyc.v"])
    assert [(entry.version, bool(entry.problem)) for entry in fresh.log()] == [
        (hint, True),
        (2, False),
        (1, False),
        (0, False),
    ]
    with pytest.raises(tl.CorruptFile, match="restore the roots of versions"):
        fresh.create_namespace("next")
    put_hint(lake, None)
    fresh.create_namespace("next")
    assert tl.open(lake.uri).version == 3


@pytest.mark.parametrize("kind", HINTS)
def test_expired_versions_stay_expired_with_any_hint(lake: tl.Lakehouse, kind: str) -> None:
    """Version 0 has expired, so after a wrong hint the search cannot begin there."""
    lake.create_namespace("a")
    assert lake.maintenance.expire(before=2) == [0, 1]
    put_hint(lake, HINTS[kind])
    fresh = tl.open(lake.uri, durability="none")
    assert (fresh.version, fresh.namespaces()) == (3, ["a", "nyc"])
    with pytest.raises(tl.VersionExpired):
        fresh.at(1)


def test_folder_at_the_path_of_the_hint_is_ignored(lake: tl.Lakehouse) -> None:
    put_hint(lake, None)
    (folder(lake) / "_latest_hint.txt").mkdir()
    fresh = tl.open(lake.uri, durability="none")
    assert fresh.version == 2
    fresh.create_namespace("next")
    assert tl.open(lake.uri).version == 3


# Large versions


@pytest.mark.parametrize("start", [2**32 - 2, 2**40 + 7, 2**62])
@pytest.mark.parametrize("hinted", [True, False])
def test_versions_beyond_32_bits_can_be_committed(lake: tl.Lakehouse, start: int, hinted: bool) -> None:
    """A lakehouse in which all versions before 2³² have expired."""
    rows = to_rows((folder(lake) / core.root_path(2)).read_bytes())
    for row in rows:
        if row[KEY] == "version":
            row[1] = str(start)
        if row[KEY] == "previous_root":
            row[1] = core.root_path(start - 1)
    storage = _core.Storage(f"memory://{uuid.uuid4()}")
    files = {str(path.relative_to(folder(lake))): path.read_bytes() for path in folder(lake).rglob("*.binpb")}
    files |= {core.root_path(start): to_bytes(rows), f"_expired/{start:020d}": b""}
    if hinted:
        files["_latest_hint.txt"] = str(start).encode()
    storage.put_many(list(files.items()))
    old = tl.open(storage.root)
    assert (old.version, old.views()) == (start, ["nyc.v"])
    old.maintenance.relocate(rewrite=False)  # the copied lakehouse was created on a disk
    for number in range(3):
        old.create_namespace(f"n{number}")
    names = [path for path, _, _ in storage.list("_") if path.endswith(".arrow")]
    assert {core.root_version(name) for name in names} == set(range(start, start + 5))
    assert max(len(name) for name in names) == len("_.arrow") + max(32, (start + 4).bit_length())
    fresh = tl.open(storage.root)
    assert (fresh.version, fresh.namespaces()) == (start + 4, ["n0", "n1", "n2", "nyc"])
    assert [entry.version for entry in fresh.log(None)] == list(range(start + 4, start - 1, -1))
    with pytest.raises(tl.VersionExpired):
        fresh.at(start - 1)
    with pytest.raises(tl.VersionNotFound):
        fresh.at(start + 5)


@pytest.mark.parametrize("version", [-99, 2**64, 2**200, "one", 1.5, True, [1]])
def test_a_number_that_no_version_can_have_is_refused(lake: tl.Lakehouse, version: Any) -> None:
    for call in (lambda: lake.at(version), lambda: lake.rollback(version), lambda: lake.diff(version)):
        with unchanged(lake), pytest.raises((tl.VersionNotFound, tl.InvalidArgument, TypeError, OverflowError)):
            call()


# Roots that are none


def make_nothing(path: Path) -> None:
    pass


def make_empty_folder(path: Path) -> None:
    path.mkdir()


def make_other_files(path: Path) -> None:
    (path / "metadata").mkdir(parents=True)
    (path / "metadata" / "v1.metadata.json").write_text("{}")
    (path / "_delta_log").mkdir()
    (path / "_SUCCESS").write_bytes(b"")
    (path / "_00.arrow").write_bytes(b"too short a name")


def make_only_a_hint(path: Path) -> None:
    path.mkdir()
    (path / "_latest_hint.txt").write_text("5")


def make_roots_of_staging(path: Path) -> None:
    path.mkdir()
    (path / (core.root_path(0) + "#1")).write_bytes(b"left over by a crash")


@pytest.mark.parametrize(
    "make", [make_nothing, make_empty_folder, make_other_files, make_only_a_hint, make_roots_of_staging]
)
def test_root_without_lakehouse_is_refused_and_unchanged(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "elsewhere"
    make(path)
    before = sorted(path.rglob("*"))
    with pytest.raises(tl.NotALakehouse, match=str(path)):
        tl.open(str(path))
    assert sorted(path.rglob("*")) == before
    assert path.exists() == (make is not make_nothing), "opening creates nothing"
    assert tl.create(str(path), durability="none").version == 0, "a lakehouse can be created there"


def test_a_file_in_the_place_of_a_root_is_no_lakehouse(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises((tl.NotALakehouse, tl.StorageError), match=str(file)):
        tl.open(str(file))
    with pytest.raises(tl.StorageError, match=str(file)):
        tl.create(str(file))
    assert file.read_text() == "text"


# Names

FORBIDDEN = [chr(code) for code in [*range(0x20), 0x7F]]


@pytest.mark.parametrize("character", FORBIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_control_characters_and_delete_are_in_no_name(lake: tl.Lakehouse, character: str) -> None:
    shown = f"U\\+{ord(character):04X}"
    check_refused(lake, (character, f"a{character}", f"{character}a", f"a{character}b"), shown)


def test_a_name_begins_and_ends_with_no_space(lake: tl.Lakehouse) -> None:
    check_refused(lake, (" ", "a ", " a", "a  ", " a b"), "space")
    lake.create_namespace("a b")
    assert lake.namespaces() == ["a b", "nyc"]


def check_refused(lake: tl.Lakehouse, names: Iterable[str], shown: str) -> None:
    """Check that each statement refuses each name with the reason, and changes nothing."""
    for name in names:
        with unchanged(lake):
            for call in (
                lambda name=name: lake.create_namespace(name),
                lambda name=name: lake.create_view(("nyc", name), "SELECT 1"),
                lambda name=name: lake.create_table(("nyc", name), ROWS),
                lambda name=name: lake.rename_view("nyc.v", ("nyc", name)),
                lambda name=name: lake.namespace(name),
                lambda name=name: core.encode_namespace_keys([name]),
            ):
                with pytest.raises(tl.InvalidName, match=shown):
                    call()


@pytest.mark.parametrize("name", ["", "..", ".", "a..b", ".a", "a.", "a...b"])
def test_a_namespace_has_no_empty_part(lake: tl.Lakehouse, name: str) -> None:
    with unchanged(lake), pytest.raises(tl.InvalidName):
        lake.create_namespace(name)


@pytest.mark.parametrize("name", [None, 5, b"bytes", (), ("nyc", None), ["nyc"], "\ud800", ("nyc", "a\udfff")])
def test_name_that_is_not_text_is_refused(lake: tl.Lakehouse, name: Any) -> None:
    with unchanged(lake):
        for call in (lake.create_namespace, lake.namespace, lake.exists, lake.table, lake.drop_view):
            with pytest.raises(tl.InvalidName):
                call(name)


HARMLESS = {
    "slash": "a/b",
    "only a slash": "/",
    "leading slash": "/etc/passwd",
    "backslash": "a\\b\\c",
    "slashes": "a//b/",
    "quotes": "a'b\"c`d",
    "percent": "%2e%2e%2f",
    "shell": "$(rm)|;&*?<>",
    "NFC": unicodedata.normalize("NFC", "é"),
    "NFD": unicodedata.normalize("NFD", "é"),
    "bidirectional": "a\u202etxt.exe".replace(".", "_"),
    "no width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "emoji": "👩\u200d🚀",
    "the last code point": "\U0010ffff",
    "no-break space": "a\u00a0b",
    "hash": "a#1",
    "format's own": "_latest_hint",
    "option": "--root",
    "Windows device": "CON",
    "upper": "NAME",
    "lower": "name",
}


def test_odd_names_stay_inside_the_root_and_apart_from_each_other(lake: tl.Lakehouse, tmp_path: Path) -> None:
    outside = {path for path in tmp_path.rglob("*") if folder(lake) not in [path, *path.parents]}
    with lake.transaction() as txn:
        for kind, name in HARMLESS.items():
            txn.create_namespace(name, {"kind": kind})
            txn.create_view((name, name), f"SELECT '{kind}'")
    for reader in (lake, tl.open(lake.uri)):
        assert set(HARMLESS.values()) <= set(reader.namespaces())
        assert reader.namespaces() == sorted(reader.namespaces(), key=str.encode)
        for kind, name in HARMLESS.items():
            assert reader.namespace(name).properties == {"kind": kind}
            assert reader.view((name, name)).sql == f"SELECT '{kind}'"
    assert {path for path in tmp_path.rglob("*") if folder(lake) not in [path, *path.parents]} == outside
    with lake.transaction() as txn:
        txn.drop_namespace(HARMLESS["NFC"], cascade=True)
    assert not lake.exists(HARMLESS["NFC"])
    assert lake.exists(HARMLESS["NFD"]), "no normalization: two byte strings are two names"


@pytest.mark.parametrize(
    "kind", ["slash", "leading slash", "backslash", "NFD", "bidirectional", "percent", "shell", "hash"]
)
def test_tables_with_odd_names_keep_their_files_inside_the_root(lake: tl.Lakehouse, tmp_path: Path, kind: str) -> None:
    name = HARMLESS[kind]
    lake.create_namespace(name)
    table = lake.create_table((name, name), ROWS)
    table.append(ROWS)
    assert table.scan().count() == 3
    files = [path for path in tmp_path.rglob("*.parquet")]
    assert len(files) == 1
    assert folder(lake) in files[0].parents
    assert sorted(tl.open(lake.uri).table((name, name)).scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("name", ["..", ".", "...", "_txn", ".hidden"])
def test_table_named_like_a_parent_folder_stays_in_the_root(lake: tl.Lakehouse, tmp_path: Path, name: str) -> None:
    lake.create_table(("nyc", name), ROWS).append(ROWS)
    assert lake.table(("nyc", name)).scan().count() == 3
    assert all(folder(lake) in path.parents for path in tmp_path.rglob("*.parquet"))


def test_limits_of_names_count_bytes(tmp_path: Path) -> None:
    lake = tl.create(
        str(tmp_path / "lake"),
        durability="none",
        namespace_name_max_size_bytes=10,
        table_name_max_size_bytes=7,
        view_name_max_size_bytes=6,
    )
    lake.create_namespace("é" * 5)
    lake.create_namespace("n")
    lake.create_table(("n", "数数t"), ROWS)
    lake.create_view(("n", "👩vi"), "SELECT 1")
    with unchanged(lake):
        for call, limit in (
            (lambda: lake.create_namespace("é" * 5 + "x"), 10),
            (lambda: lake.create_namespace("x" * 11), 10),
            (lambda: lake.create_namespace("é" * 2 + "." + "é" * 3), 10),
            (lambda: lake.create_table(("n", "数数tt"), ROWS), 7),
            (lambda: lake.create_view(("n", "👩vie"), "SELECT 1"), 6),
            (lambda: lake.rename_view(("n", "👩vi"), ("n", "seven77")), 6),
            (lambda: lake.create_namespace("x" * 100_000), 10),
        ):
            with pytest.raises(tl.InvalidName, match=rf"bytes.*limit.* {limit}\b") as caught:
                call()
            assert len(str(caught.value)) < 300, "the error does not repeat the whole input"
    assert lake.tables() == ["n.数数t"]


def test_the_longest_names_that_are_allowed_fit_into_file_names(tmp_path: Path) -> None:
    """Two names of a hundred bytes, with the other parts of a file name, would exceed the limit of a path segment."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    long = "数" * 33 + "x"
    lake.create_namespace(long)
    lake.create_table((long, long), ROWS).append(ROWS)
    lake.create_view((long, "v" * 100), "SELECT 1")
    assert tl.open(lake.uri).table((long, long)).scan().count() == 3
    for path in folder(lake).rglob("*"):
        assert len(path.name.encode()) <= 255
        if path.suffix in (".binpb", ".arrow"):  # what the tree stores
            assert len(str(path.relative_to(folder(lake))).encode()) <= 200


@pytest.mark.parametrize("id", ["", " ", "a b", "a/b", "..", ".", "a\0", "é", "x" * 101, "a\n", "\ud800"])
def test_a_chosen_id_that_could_be_no_file_name_is_refused(lake: tl.Lakehouse, id: str) -> None:
    with unchanged(lake), pytest.raises((tl.InvalidName, tl.InvalidArgument, UnicodeEncodeError)):
        lake.begin(id=id)


# Locations

BAD_ROOTS = {
    "s3://bucket/../file": "`..`",
    "s3://bucket/a/./b": "`.`",
    "s3://bucket//a": "empty segment",
    "memory://a/../b": "`..`",
    "file:///tmp/../etc": "`..`",
    "file://host/share": "absolute path",
    "gs://bucket/../x": "`..`",
    "az://container/a/..": "`..`",
    "s3://": "bucket",
    "s3:/bucket": "s3://",
    "hdfs://host/x": "HDFS",
    "ftp://host/x": "scheme",
    "javascript://x": "scheme",
    "": "empty",
    "/": "root folder",
    "~/lake": "~",
    "/tmp/a\0b": "control character",
    "/tmp/a\nb": "control character",
    "s3://bucket/x?versionId=1": "query",
    "/tmp/\udcff": "UTF-8",
}


@pytest.mark.parametrize("uri", BAD_ROOTS, ids=ascii)
def test_a_root_that_is_not_qualified_is_refused_and_the_fault_is_named(uri: str) -> None:
    for call in (tl.create, tl.open):
        with pytest.raises(tl.InvalidLocation) as caught:
            call(uri)
        assert BAD_ROOTS[uri] in str(caught.value)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "", "file:///x", "a\0b"])
def test_path_out_of_the_root_is_refused(lake: tl.Lakehouse, path: str) -> None:
    storage = lake._storage
    with unchanged(lake):
        for call in (
            lambda: storage.get(path),
            lambda: storage.get_range(path, 0, 1),
            lambda: storage.size(path),
            lambda: storage.exists(path),
            lambda: storage.put(path, b""),
            lambda: storage.put_many([(path, b"")]),
            lambda: storage.delete(path),
        ):
            with pytest.raises(tl.InvalidLocation):
                call()


@pytest.mark.parametrize("property", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_a_table_property_cannot_send_files_out_of_the_root(lake: tl.Lakehouse, tmp_path: Path, property: str) -> None:
    before = sorted(path for path in tmp_path.iterdir())
    elsewhere = str(tmp_path / "elsewhere")
    for location in (elsewhere, f"file://{elsewhere}", f"{lake.uri}../elsewhere", "s3://other/bucket"):
        transaction = lake.begin()

        def write(transaction: tl.Transaction = transaction, location: str = location) -> None:
            transaction.create_table("nyc.t", ROWS, properties={property: location}).append(ROWS)

        with pytest.raises(tl.InvalidLocation):
            write()
        transaction.rollback()
    assert sorted(path for path in tmp_path.iterdir()) == before
    assert lake.tables() == []


@pytest.mark.parametrize("property", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_a_table_property_cannot_send_files_beside_the_table(lake: tl.Lakehouse, property: str) -> None:
    """A folder whose name begins with the name of the table's folder is outside of the table."""
    table = lake.create_table("nyc.t", ROWS)
    for location in (f"{table.location.rstrip('/')}-beside", f"{lake.uri}nyc/other"):
        with pytest.raises(tl.InvalidLocation, match="outside of the table"):
            lake.alter_table(table.name, {property: location})
    below = f"{table.location.rstrip('/')}/below"
    lake.alter_table(table.name, {property: below})
    assert lake.table(table.name).properties[property] == below


@pytest.mark.parametrize(
    "location", ["file:///tmp/../etc/t.metadata.json", "s3://b/a/../t.metadata.json", "../t.json", ""]
)
def test_an_external_table_over_an_unqualified_location_is_refused(lake: tl.Lakehouse, location: str) -> None:
    with unchanged(lake), pytest.raises(tl.InvalidLocation):
        lake.create_table("nyc.t", metadata_location=location)


# Symbolic links


def test_a_definition_behind_a_link_is_not_read(lake: tl.Lakehouse, tmp_path: Path) -> None:
    path = lake._core.latest().locate("namespace", "nyc")
    assert path is not None
    file = folder(lake) / path
    (tmp_path / "moved").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "moved")
    with pytest.raises(tl.InvalidLocation, match="symbolic link"):
        tl.open(lake.uri).namespace("nyc")


@pytest.mark.parametrize("place", ["_txn", "_txn/id/0", "_expired", "_queue/deep/er", "_anything"])
def test_no_lakehouse_is_created_in_an_internal_folder_of_another(tmp_path: Path, place: str) -> None:
    """At `<lakehouse>/_txn` it looked like saved transactions, which the outer lakehouse deletes later."""
    outer = tl.create(tmp_path / "lake")
    with pytest.raises(tl.InvalidLocation, match="in an internal folder of the lakehouse"):
        tl.create(tmp_path / "lake" / place)
    assert not (tmp_path / "lake" / place).exists()
    assert outer.transactions.list() == []
    tl.create(tmp_path / "lake" / "inner")  # other folders are free
    tl.create(tmp_path / "_work" / "lake")  # the name is reserved only inside of a lakehouse


def test_no_lakehouse_is_created_in_an_internal_folder_of_a_damaged_one(tmp_path: Path) -> None:
    tl.create(tmp_path / "lake")
    for root in (tmp_path / "lake").glob("_0*"):
        root.write_bytes(b"damaged")
    with pytest.raises(tl.InvalidLocation):
        tl.create(tmp_path / "lake" / "_txn")
