"""`lake.erase` removes the rows of a person from every file, and keeps everything else."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import trinitylake as tl
from local_files import age_instead_of_sleep
from manifests_by_hand import avro_parts
from position_deletes import delete_values
from s3_server import serve
from trinitylake.cli.app import app
from trinitylake.lakehouse import erasure

ANN = "ann.smith@example.com"
FILTER = f"email = '{ANN}'"
SCHEMA = {"id": "bigint", "email": "varchar"}


@pytest.fixture(autouse=True)
def _files_age_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    age_instead_of_sleep(monkeypatch, erasure, tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", order=5, durability="none")
    lake.create_namespace("raw")
    return lake


def people(*emails: str | None, first: int = 1) -> pa.Table:
    return pa.table({"id": range(first, first + len(emails)), "email": pa.array(emails, pa.string())})


def holding(root: Path, value: str) -> list[str]:
    """Files and folders below a root whose name, bytes or decoded content contains a value. Uses no code of this
    library."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if value in unquote_plus(str(path.relative_to(root)))
        or (path.is_file() and any(value in text for text in texts_in(path.read_bytes())))
    )


def texts_in(data: bytes) -> Iterator[str]:
    yield data.decode("latin-1")
    if data[:4] == b"PAR1":
        file = pq.ParquetFile(pa.BufferReader(data))
        names = [file.schema.column(number).path for number in range(len(file.schema))]
        # Read as dictionaries, so that a value in a dictionary is found although no row uses it.
        read = pq.ParquetFile(pa.BufferReader(data), read_dictionary=names).read()
        for column in read.columns:
            for chunk in column.chunks:
                yield str(chunk.dictionary.to_pylist() if pa.types.is_dictionary(chunk.type) else chunk.to_pylist())
        yield str(file.read().to_pylist())
    elif data[:6] == b"ARROW1":
        for row in pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pylist():
            for text in filter(None, row.values()):
                yield text
                for part in text.split():
                    yield bytes.fromhex(part).decode("latin-1") if is_hexadecimal(part) else part
    elif data[:4] == b"Obj\x01":
        header, blocks = avro_parts(data)
        codec = header.get(b"avro.codec", b"null")
        assert codec in (b"deflate", b"null")
        for _, block in blocks:
            yield (zlib.decompress(block, -15) if codec == b"deflate" else block).decode("latin-1")
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data).decode("latin-1")


def is_hexadecimal(text: str) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except ValueError:
        return False


History = Literal["rewrite", "expire"]
Build = Callable[[tl.Lakehouse], object]


def plain(lake: tl.Lakehouse) -> None:
    table = lake.create_table("raw.orders", SCHEMA)
    table.append(people("bob", ANN, "eve"))
    table.append(people(ANN, "dan", first=4))


def deleted_before(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.table("raw.orders").delete(FILTER, message=f"{ANN} wants to be forgotten")


def deleted_by_vectors(lake: tl.Lakehouse) -> None:
    merge_on_read(lake, "3")


def deleted_by_positions(lake: tl.Lakehouse) -> None:
    merge_on_read(lake, "2")


def merge_on_read(lake: tl.Lakehouse, version: str) -> None:
    properties = {"format-version": version, "write.delete.mode": "merge-on-read"}
    table = lake.create_table("raw.orders", SCHEMA, properties=properties)
    table.append(people("bob", ANN, "eve", "zoe"))
    table.append(people(ANN, "dan", first=5))
    lake.table("raw.orders").delete("id = 1 or id = 2")


def deleted_by_values(lake: tl.Lakehouse) -> None:
    table = lake.create_table("raw.orders", SCHEMA)
    table.append(people("bob", ANN, "eve"))
    delete_values(lake.table("raw.orders"), pa.table({"email": [ANN]}))


def partitioned(lake: tl.Lakehouse) -> None:
    table = lake.create_table(
        "raw.orders", SCHEMA, partition_spec=["email"], properties={"write.summary.partition-limit": "10"}
    )
    table.append(people("bob", ANN, None))
    table.append(people(ANN, "dan", first=4))


def bucketed_and_truncated(lake: tl.Lakehouse) -> None:
    lake.create_table("raw.orders", SCHEMA, partition_spec=["truncate(6, email)"]).append(people("bob", ANN, None))


def renamed_column(lake: tl.Lakehouse) -> None:
    plain(lake)
    with lake.table("raw.orders").update_schema() as update:
        update.rename_column("email", "mail")


def dropped_column(lake: tl.Lakehouse) -> None:
    plain(lake)
    with lake.table("raw.orders").update_schema() as update:
        update.delete_column("email")


def renamed_table(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.rename_table("raw.orders", "raw.old_orders")
    lake.create_table("raw.orders", SCHEMA).append(people("new", ANN))


def dropped_table(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.drop_table("raw.orders")


def undropped_table(lake: tl.Lakehouse) -> None:
    plain(lake)
    version = lake.version
    lake.drop_table("raw.orders")
    lake.rollback(version, objects="raw.orders")


def compacted(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.table("raw.orders").maintenance.compact(min_files=2)
    lake.table("raw.orders").delete("id = 4")


def in_inline_definition(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.create_view("raw.ann", f"SELECT * FROM raw.orders WHERE email = '{ANN}'")
    lake.drop_view("raw.ann")


def in_properties(lake: tl.Lakehouse) -> None:
    plain(lake)
    lake.alter_namespace("raw", {"owner": ANN})
    lake.alter_namespace("raw", {"owner": "ops"})


def with_statistics(lake: tl.Lakehouse) -> None:
    properties = {
        "write.parquet.bloom-filter-enabled.column.email": "true",
        "write.metadata.metrics.default": "full",
        "write.metadata.compression-codec": "gzip",
    }
    table = lake.create_table("raw.orders", SCHEMA, properties=properties)
    table.append(people(ANN, *(f"person{number}" for number in range(200)), *(["again"] * 300)))


SCENARIOS = [
    plain,
    deleted_before,
    deleted_by_vectors,
    deleted_by_positions,
    deleted_by_values,
    partitioned,
    bucketed_and_truncated,
    renamed_column,
    dropped_column,
    renamed_table,
    dropped_table,
    undropped_table,
    compacted,
    in_inline_definition,
    in_properties,
    with_statistics,
]


#: Scenarios in which a commit message or a definition of an earlier version contains the value.
IN_ROOTS = deleted_before, in_inline_definition, in_properties


@pytest.mark.sample(17)
@pytest.mark.parametrize("history", ["rewrite", "expire"])
@pytest.mark.parametrize("build", SCENARIOS, ids=lambda build: build.__name__)
def test_no_file_holds_an_erased_value_and_all_other_rows_stay(
    lake: tl.Lakehouse, tmp_path: Path, build: Build, history: History
) -> None:
    build(lake)
    rows = {name: lake.table(name).scan().to_arrow().to_pylist() for name in lake.tables()}
    versions = range(lake.version + 1)
    past = {number: rows_by_table(lake.at(number)) for number in versions}
    assert holding(tmp_path / "lake", ANN)
    planned = lake.erase("raw.orders", FILTER, history=history, dry_run=True)
    assert planned.files
    assert lake.erase("raw.orders", FILTER, history=history, dry_run=True) == planned
    done = lake.erase("raw.orders", FILTER, history=history, reason="request 4711")
    stays = holding(tmp_path / "lake", ANN)
    if history == "rewrite" and build in IN_ROOTS:
        assert not done.is_verified
        assert all("version" in mention or mention in stays for mention in done.mentions)
        assert {path for path in stays if not path.endswith((".arrow", ".binpb"))} == set()
    else:
        assert stays == []
        assert done.is_verified, done
    assert ANN not in json.dumps(done.certificate)

    def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        erased = (2, 4) if build is dropped_column else [row["id"] for row in rows if ANN in row.values()]
        return [row for row in rows if row["id"] not in erased]

    for name, before in rows.items():
        after = lake.table(name).scan().to_arrow().to_pylist()
        assert sorted(after, key=lambda row: row["id"]) == sorted(kept(before), key=lambda row: row["id"])
    if history == "rewrite":
        for number in versions:
            assert rows_by_table(lake.at(number)) == {name: kept(some) for name, some in past[number].items()}
    assert lake.maintenance.fsck("all", data=True).is_sound


def rows_by_table(version: tl.LakehouseVersion) -> dict[str, list[dict[str, Any]]]:
    return {name: version.table(name).scan().to_arrow().sort_by("id").to_pylist() for name in version.tables()}


def test_files_of_another_table_are_searched(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """The search for remaining rows works with data files of other tables, so that the erasure is verified and
    certified."""
    for name in ("raw.people", "raw.copies"):
        lake.create_table(name, SCHEMA).append(people(ANN, "bob"))
    erased = lake.erase("raw.people", FILTER)
    assert (erased.is_verified, len(erased.others)) == (True, 1)
    assert lake.erase("raw.copies", FILTER).others == ()
    assert holding(tmp_path, ANN) == []


def test_nested_columns_and_nulls_are_erased(lake: tl.Lakehouse, tmp_path: Path) -> None:
    rows = [{"id": 1, "who": {"email": ANN}}, {"id": 2, "who": {"email": None}}, {"id": 3, "who": None}]
    table = lake.create_table("raw.orders", pa.Table.from_pylist(rows))
    table.append(pa.Table.from_pylist(rows))
    assert lake.erase("raw.orders", f"who.email = '{ANN}'").is_verified
    assert lake.table("raw.orders").scan().to_arrow().to_pylist() == rows[1:]
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.erase("raw.orders", "who.email IS NULL").is_verified
    assert lake.table("raw.orders").count() == 0


@pytest.mark.parametrize("is_added_again", [False, True])
def test_rows_of_a_file_without_the_column_are_not_null_in_a_schema_that_never_showed_them(
    lake: tl.Lakehouse, is_added_again: bool
) -> None:
    """`erase("email IS NULL")` does not treat a file as NULL because it lacks a column that was dropped or added again.
    Otherwise it would delete all rows of such files."""
    table = lake.create_table("raw.orders", SCHEMA)
    table.append(people(ANN, None))
    with table.update_schema() as change:
        change.delete_column("email")
    table.append(pa.table({"id": [3]}))
    expected = [1, 3]
    if is_added_again:
        with table.update_schema() as change:
            change.add_column("email", "varchar")
        table.append(people("x", None, first=4))
        expected = [4]  # rows 1 to 3 are NULL in the new column
    assert lake.erase("raw.orders", "email IS NULL").is_verified
    assert sorted(lake.table("raw.orders").to_arrow()["id"].to_pylist()) == expected


def test_position_deletes_are_no_rows_without_the_column(lake: tl.Lakehouse) -> None:
    """A file of position deletes, which has no column of the table, does not count as rows with NULL, so the erasure is
    verified."""
    properties = {"format-version": "2", "write.delete.mode": "merge-on-read"}
    table = lake.create_table("raw.orders", SCHEMA, partition_spec=["email"], properties=properties)
    table.append(people("a", "a", "b", None))
    table.delete("id = 1")
    assert lake.erase("raw.orders", "email IS NULL").is_verified
    assert sorted(lake.table("raw.orders").to_arrow()["id"].to_pylist()) == [2, 3]


@pytest.mark.parametrize("spec", [[], ["email"]])
def test_metadata_of_another_table_with_the_value_prevents_no_verification(
    lake: tl.Lakehouse, tmp_path: Path, spec: list[str]
) -> None:
    """Manifests of another table that repeat the value, as a bound or partition value, are reported in `others` and do
    not prevent the verification."""
    value = "al@x.de"  # bounds of longer texts are cut
    lake.create_table("raw.orders", SCHEMA).append(people("bob", value))
    lake.create_table("raw.other", SCHEMA, partition_spec=spec).append(people(value, "bob"))
    done = lake.erase("raw.orders", f"email = '{value}'")
    assert (done.is_verified, done.remaining, done.mentions) == (True, {}, ())
    assert {"parquet", "avro"} <= {path.rpartition(".")[2] for path in done.others}
    assert all(path.startswith("raw/other-") for path in done.others)
    lake.sql(f"COMMENT ON COLUMN raw.other.id IS 'as of {value}'")
    assert lake.erase("raw.orders", f"email = '{value}'").mentions


def test_values_in_other_columns_are_reported(lake: tl.Lakehouse) -> None:
    """Files with the value in another column are reported, such as a dead-letter table with the whole row as JSON. The
    search reads the values, because a footer has only the least and the greatest string."""
    table = lake.create_table("raw.orders", SCHEMA)
    table.append(people(ANN, "bob@example.com"))
    rows: list[dict[str, object]] = [{"id": f"x{number:03}", "email": "eve"} for number in range(200)]
    rows.insert(100, {"id": "x099x", "email": ANN})
    with table.writer(dead_letter_table="raw.rejected") as writer:
        writer.write(rows)
    near = [ANN[:5], ANN[5:], [{"deep": None}, {"deep": "a" + ANN}]]
    lake.create_table("raw.near", pa.table({"part": near[:2]})).append(pa.table({"part": near[:2]}))
    nested = pa.table({"list": [near[2]]})
    lake.create_table("raw.nested", nested).append(nested)
    done = lake.erase("raw.orders", FILTER)
    assert done.is_verified
    assert {path.split("/")[1].rpartition("-")[0] for path in done.others} == {"rejected", "nested"}
    assert done.certificate["verification"]["other_files_with_matching_rows"] == 2
    with pytest.raises(tl.InvalidArgument, match="the reason or the author"):
        lake.erase("raw.orders", FILTER, author=ANN)


def test_a_former_comment_of_a_column_is_erased(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """A former comment of a column, which remains in an old schema, is erased if it contains the value."""
    table = lake.create_table("raw.orders", SCHEMA)
    for comment in (f"such as {ANN}", "an address"):
        with table.update_schema() as change:
            change.update_column("email", doc=comment)
    table.append(people(ANN, "bob@example.com"))
    assert lake.erase("raw.orders", FILTER, history="expire").is_verified
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.table("raw.orders").schema["email"].doc == "an address"


def test_a_tag_and_a_saved_transaction_are_named_before_anything_changes(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    lake.tags.create("q3")
    transaction = lake.begin(id="load-7")
    transaction.table("raw.orders").append(people(ANN, first=9))
    transaction.save()
    lake.table("raw.orders").delete(FILTER)
    version, planned = lake.version, lake.erase("raw.orders", FILTER, history="expire", dry_run=True)
    assert (planned.tags, planned.transactions) == (("q3",), ("load-7",))
    with pytest.raises(tl.InvalidArgument, match=r"tag q3.*drop_tags"):
        lake.erase("raw.orders", FILTER, history="expire")
    with pytest.raises(tl.InvalidArgument, match=r"load-7.*roll_back_transactions"):
        lake.erase("raw.orders", FILTER, history="expire", drop_tags=True)
    assert lake.version == version
    done = lake.erase("raw.orders", FILTER, history="expire", drop_tags=True, roll_back_transactions=True)
    assert done.is_verified
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.tags.list() == []
    assert lake.transactions.list() == []


@pytest.mark.parametrize("history", ["rewrite", "expire"])
def test_branches_and_tags_of_the_table_stay_without_the_rows(
    lake: tl.Lakehouse, tmp_path: Path, history: History
) -> None:
    plain(lake)
    iceberg = lake.table("raw.orders").iceberg
    iceberg.manage_snapshots().create_tag(iceberg.current_snapshot().snapshot_id, "audit").commit()
    lake.table("raw.orders").append(people("new", first=9))
    assert lake.erase("raw.orders", FILTER, history=history).is_verified
    assert holding(tmp_path / "lake", ANN) == []
    tagged = lake.table("raw.orders").iceberg.snapshot_by_name("audit")
    assert tagged.summary["total-records"] == "3"
    rows = lake.table("raw.orders").iceberg.scan(snapshot_id=tagged.snapshot_id).to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 3, 5]


def test_no_version_expires_if_none_holds_matching_rows(lake: tl.Lakehouse) -> None:
    plain(lake)
    version = lake.version
    done = lake.erase("raw.orders", "email = 'nobody@example.com'")
    assert done.is_verified
    assert (done.version, done.expired, done.files) == (None, (), {})
    assert lake.at(0).tables() == []
    assert lake.version == version


def test_a_hidden_row_of_an_inner_node_keeps_no_file(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """The row of a dropped view that remains in a leaf, hidden by the message that deletes it, does not keep the
    definition file."""
    for number in range(30):
        lake.create_view(f"raw.v{number:02}", f"SELECT '{ANN if number == 7 else number}'")
    plain(lake)
    lake.drop_view("raw.v07")
    assert lake.erase("raw.orders", FILTER, history="expire").is_verified
    assert holding(tmp_path / "lake", ANN) == []


STEPS = ("_commit", "_without_history", "_collected", "_remove_empty_folders", "_verified")


@pytest.mark.parametrize("point", [*map("_ErasureRun.{}".format, STEPS), "time.sleep"])
def test_a_second_call_finishes_after_a_crash(
    lake: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    plain(lake)
    with monkeypatch.context() as patch:
        patch.setattr(f"trinitylake.lakehouse.erasure.{point}", crash)
        with pytest.raises(KeyboardInterrupt):
            lake.erase("raw.orders", FILTER, history="expire")
    assert tl.open(tmp_path / "lake").erase("raw.orders", FILTER, history="expire").is_verified
    assert holding(tmp_path / "lake", ANN) == []


def crash(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_erased_is_named_and_not_certified(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    lake.create_view("raw.ann", f"SELECT id FROM raw.orders WHERE email = '{ANN}'")
    lake.rollback(lake.version, objects={"raw.orders": "raw.copy"})
    lake.create_table("raw.newsletter", SCHEMA).append(people(ANN))
    done = lake.erase("raw.orders", FILTER, history="expire")
    assert not done.is_verified
    assert not done.certificate["verification"]["is_verified"]
    assert "view raw.ann" in done.mentions[0]
    assert any("table raw.copy uses the file" in why for why in done.remaining.values())
    assert len(done.others) == 1
    assert done.others[0].startswith("raw/newsletter")
    lake.drop_view("raw.ann")
    assert not lake.erase("raw.copy", FILTER, history="expire").mentions
    lake.erase("raw.newsletter", FILTER, history="expire")
    assert lake.erase("raw.orders", FILTER, history="expire").is_verified
    assert holding(tmp_path / "lake", ANN) == []


def test_files_of_running_transactions_are_kept_for_a_grace_and_named(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    done = lake.erase("raw.orders", FILTER, grace="1 day")
    assert not done.is_verified
    assert all("vacuum deletes it from" in why for why in done.remaining.values())
    assert done.remaining
    assert lake.erase("raw.orders", FILTER).is_verified
    assert holding(tmp_path / "lake", ANN) == []


def test_files_of_dead_writers_are_deleted(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    folder = next((tmp_path / "lake" / "raw").iterdir()) / "data"
    for name in ("_staged#1000000001", f"00000-0-{uuid.uuid4()}.parquet"):
        pq.write_table(people(ANN), folder / name)
        os.utime(folder / name, (1, 1))
    (tmp_path / "lake" / "notes.txt").write_text(ANN)
    done = lake.erase("raw.orders", FILTER)
    assert done.mentions == ("notes.txt",)
    assert holding(tmp_path / "lake", ANN) == ["notes.txt"]


def test_a_file_that_was_added_from_outside_of_the_folder_is_named(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    added = tmp_path / "lake" / "imports" / "people.parquet"
    added.parent.mkdir()
    pq.write_table(people("old", ANN, first=50), added)
    lake.table("raw.orders").iceberg.add_files([f"file://{added}"])
    done = lake.erase("raw.orders", FILTER)
    assert list(done.remaining) == ["imports/people.parquet"]
    assert not done.is_verified
    assert sorted(lake.table("raw.orders").to_arrow()["id"].to_pylist()) == [1, 3, 5, 50]
    added.unlink()
    assert lake.erase("raw.orders", FILTER).is_verified


def test_the_reason_must_not_contain_the_value(lake: tl.Lakehouse) -> None:
    plain(lake)
    with pytest.raises(tl.InvalidArgument, match="reason"):
        lake.erase("raw.orders", FILTER, reason=f"request of {ANN}")


def test_external_tables_and_unknown_names_are_refused(lake: tl.Lakehouse) -> None:
    plain(lake)
    location = lake.table("raw.orders").iceberg.metadata_location
    other = tl.create(f"{lake.uri.removeprefix('file://').rstrip('/')}-2")
    other.create_namespace("raw")
    other.create_table("raw.orders", metadata_location=location)
    with pytest.raises(tl.InvalidArgument, match="external"):
        other.erase("raw.orders", FILTER)
    other.create_table("raw.people", SCHEMA)
    assert "other catalogs: raw.orders" in str(other.erase("raw.people", FILTER).certificate["not_covered"])
    with pytest.raises(tl.ObjectNotFound):
        lake.erase("raw.missing", FILTER)
    with pytest.raises(tl.InvalidArgument, match="mail"):
        lake.erase("raw.orders", "mail = 'x'")


def test_a_certificate_is_checked_with_its_key_and_filter(lake: tl.Lakehouse, tmp_path: Path) -> None:
    plain(lake)
    done = lake.erase("raw.orders", FILTER)
    path = tmp_path / "certificate.json"
    done.write(path)
    key = f"{path}.key"
    assert lake.maintenance.fsck(certificate=path, filter=FILTER, key=key).is_sound
    with pytest.raises(tl.InvalidArgument, match="belongs to another filter"):
        lake.maintenance.fsck(certificate=path, filter="email = 'bob'", key=key)
    lake.table("raw.orders").append(people(ANN))
    assert lake.maintenance.fsck(certificate=path, key=key).is_sound
    found = lake.maintenance.fsck(certificate=path, filter=FILTER, key=key)
    assert not found.is_sound
    assert {one.kind for one in found.findings} == {"erased"}
    deleted = next(name for name in done.deleted if name.endswith(".parquet"))
    (tmp_path / "lake" / deleted).write_bytes(b"restored from a backup")
    assert [one.path for one in lake.maintenance.fsck(certificate=path).findings] == [deleted]
    changed = json.loads(path.read_text()) | {"reason": "another"}
    path.write_text(json.dumps(changed))
    with pytest.raises(tl.InvalidArgument, match="was changed"):
        lake.maintenance.fsck(certificate=path, key=key)


@pytest.mark.parametrize("history", ["rewrite", "expire"])
def test_rows_are_erased_while_others_append(lake: tl.Lakehouse, tmp_path: Path, history: History) -> None:
    plain(lake)
    is_over = threading.Event()
    appended: list[int] = []

    def append() -> None:
        while not is_over.is_set():
            lake.table("raw.orders").append(people("other", first=100 + len(appended)))
            appended.append(100 + len(appended))

    thread = threading.Thread(target=append)
    thread.start()
    try:
        done = lake.erase("raw.orders", FILTER, history=history)
    finally:
        is_over.set()
        thread.join()
    assert done.is_verified
    assert holding(tmp_path / "lake", ANN) == []
    found = sorted(lake.table("raw.orders").to_arrow()["id"].to_pylist())
    assert found == [1, 3, 5, *appended]
    assert lake.maintenance.fsck(data=True).is_sound


def test_other_rows_keep_their_ids(lake: tl.Lakehouse) -> None:
    table = lake.create_table("raw.orders", SCHEMA, properties={"format-version": "3"})
    table.append(people("bob", ANN, "eve", ANN, "zoe"))
    columns = ["id", "_row_id", "_last_updated_sequence_number"]
    before = lake.table("raw.orders").scan(columns=columns).to_arrow().to_pylist()
    lake.erase("raw.orders", FILTER)
    assert lake.table("raw.orders").scan(columns=columns).to_arrow().to_pylist() == [before[0], before[2], before[4]]


def test_rows_are_erased_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "time", time)
    erase_in(tl.create(f"memory://{uuid.uuid4()}"))


def test_rows_are_erased_on_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasure, "time", time)  # no object can be made older
    with serve() as server:
        erase_in(tl.create(f"s3://{server.new_bucket()}/lake", storage_options=server.storage_options))


def erase_in(lake: tl.Lakehouse) -> None:
    lake.create_namespace("raw")
    partitioned(lake)
    assert lake.erase("raw.orders", FILTER).is_verified
    assert lake.table("raw.orders").count() == 3
    assert not any(ANN in unquote_plus(path) for path, *_ in lake._storage.list(""))


def test_the_command_reports_erases_and_certifies(
    lake: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRINITYLAKE_ROOT", "lake")
    plain(lake)
    lake.tags.create("q3")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.output

    planned = run("erase", "raw.orders", FILTER, "--dry-run", "--expire")
    assert "2 files with matching rows" in planned
    assert "searched column: email" in planned
    assert "3 versions: 3 to 5" in planned
    assert "tag q3 would stay without these rows" in run("erase", "raw.orders", FILTER, "--dry-run")
    assert "tag q3 would be dropped (needs --drop-tags)" in planned
    run("erase", "raw.orders", FILTER, "--expire", code=2)
    lake.create_view("raw.ann", f"SELECT '{ANN}'")
    done = json.loads(run("erase", "raw.orders", FILTER, "--expire", "--drop-tags", "--json", code=1))
    assert not done["is_verified"]
    assert done["mentions"][0].startswith("view raw.ann in version")
    assert "key" not in done
    lake.drop_view("raw.ann")
    text = run("erase", "raw.orders", FILTER, "--expire", "--certificate", "c.json")
    assert "verified" in text
    assert "keep it in another place" in text
    assert "sound" in run("fsck", "--certificate", "c.json", "--key", "c.json.key", "--filter", FILTER)
    assert (tmp_path / "c.json.key").stat().st_mode & 0o777 == 0o600
    lake.table("raw.orders").append(people(ANN))
    assert "erased" in run("fsck", "--certificate", "c.json", "--filter", FILTER, code=5)
    run("fsck", "--filter", FILTER, code=2)
