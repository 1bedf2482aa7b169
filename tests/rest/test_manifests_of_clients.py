"""Manifests of a writer of one table may name files in the folder of that table only.

The location gate checked the manifest list of a snapshot, and not its content. A writer committed a manifest with data
files of another namespace. A reader of everything, or maintenance, then showed or copied the rows of the other table.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)

import trinitylake as tl
from local_files import local_path
from manifests_by_hand import avro_file, avro_parts, zigzag
from rest.client import Answer, Client, running
from rest.conftest import ROOT, WALT
from rest.shop import new_table, with_tables
from trinitylake.rest import RestServer, metadata_limits
from trinitylake.rest.errors import RestError

Send = Callable[["Shop", str, str], Answer]


#: An old snapshot of the table, which a manifest claims to belong to.
OF_BEFORE = 5


class Shop:
    """Two tables of different owners, and a client that writes its own manifests."""

    def __init__(self, lake: tl.Lakehouse, server: RestServer) -> None:
        self.lake = lake
        self.client = Client(server)
        self.orders = lake.table("shop.orders").iceberg

    def file_of(self, name: str) -> DataFile:
        return next(iter(self.lake.table(name).iceberg.scan().plan_files())).file

    def manifest(
        self, file: DataFile, folder: str, id: int, status: ManifestEntryStatus = ManifestEntryStatus.ADDED
    ) -> ManifestFile:
        number = None if status == ManifestEntryStatus.ADDED else 1
        output = self.orders.io.new_output(f"{folder}/metadata/{uuid.uuid4()}-m0.avro")
        with write_manifest(2, self.orders.spec(), self.orders.schema(), output, id, "null") as writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=status, snapshot_id=id, sequence_number=number, file_sequence_number=number, data_file=file
                )
            )
        made = writer.to_manifest_file()
        if id == OF_BEFORE:
            made.sequence_number = made.min_sequence_number = 1  # as in a manifest of an earlier snapshot
        return made

    def manifests(self, folder: str, count: int, id: int) -> list[ManifestFile]:
        """Manifests that each contain one new file."""
        found, file = [], self.file_of("shop.orders")
        for number in range(count):
            file._data[1] = f"{folder}/data/{id}-{number}.parquet"
            found.append(self.manifest(file, folder, id))
        return found

    def snapshot(self, manifests: list[ManifestFile], folder: str, id: int, parent: int | None) -> list[dict[str, Any]]:
        """The updates that add a snapshot with these manifests and make it the current one."""
        uri = f"{folder}/metadata/snap-{id}-0-{uuid.uuid4()}.avro"
        with write_manifest_list(2, self.orders.io.new_output(uri), id, parent, 50 + id, "null") as writer:
            writer.add_manifests(manifests)
        return [
            {
                "action": "add-snapshot",
                "snapshot": {
                    "snapshot-id": id,
                    "parent-snapshot-id": parent,
                    "sequence-number": 50 + id,
                    "timestamp-ms": 9999999999999,
                    "manifest-list": uri,
                    "summary": {"operation": "append"},
                    "schema-id": 0,
                },
            },
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
        ]

    @property
    def head(self) -> int:
        metadata = self.lake.table("shop.orders").iceberg.metadata
        assert metadata.current_snapshot_id is not None
        return metadata.current_snapshot_id


@pytest.fixture
def shop(lake: tl.Lakehouse, tokens: Path) -> Iterator[Shop]:
    with_tables(lake, "shop.orders", "hr.pay")
    with running(lake, token_file=tokens) as server:
        yield Shop(lake, server)


def one(shop: Shop, updates: list[dict[str, Any]], token: str) -> Answer:
    body = {"requirements": [], "updates": updates}
    return shop.client("POST", "/v1/namespaces/shop/tables/orders", body, token=token)


def several(shop: Shop, updates: list[dict[str, Any]], token: str) -> Answer:
    change = {"identifier": {"namespace": ["shop"], "name": "orders"}, "requirements": [], "updates": updates}
    return shop.client("POST", "/v1/transactions/commit", {"table-changes": [change]}, token=token)


def names_of_others(shop: Shop) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """Snapshots of `shop.orders` that contain files of `hr.pay`, by the way in which they do."""
    own, pay = shop.orders.location(), shop.lake.table("hr.pay").iceberg
    theirs = pay.current_snapshot()
    assert theirs is not None
    secret = shop.file_of("hr.pay")

    def later(status: ManifestEntryStatus) -> list[dict[str, Any]]:
        manifest = shop.manifest(secret, own, 7, status)
        return shop.snapshot([manifest], own, 7, shop.head)

    return {
        "a data file": lambda: later(ManifestEntryStatus.ADDED),
        "a data file that is said to be there already": lambda: later(ManifestEntryStatus.EXISTING),
        "a manifest": lambda: shop.snapshot(theirs.manifests(pay.io), own, 8, shop.head),
        "a manifest of before": lambda: shop.snapshot([shop.manifest(secret, own, OF_BEFORE)], own, 9, shop.head),
    }


@pytest.mark.parametrize("send", [one, several])
def test_a_writer_of_one_table_commits_no_file_of_another(shop: Shop, send: Send) -> None:
    before = shop.lake.version
    for how, updates in names_of_others(shop).items():
        answer = send(shop, updates(), WALT)
        assert answer.code == 403, (how, answer)
        assert "hr/pay" in answer.body["error"]["message"] or "outside" in answer.body["error"]["message"]
    assert shop.lake.version == before


def test_no_file_hides_behind_an_empty_block(shop: Shop) -> None:
    """A manifest with a hidden file behind an empty block is refused. The check stopped at a block without entries, but
    the append that merged manifests read on, and added the file of another table."""
    own = shop.orders.location()
    files = [local_path(shop.manifest(shop.file_of(name), own, 7).manifest_path) for name in ("shop.orders", "hr.pay")]
    manifest = shop.manifest(shop.file_of("shop.orders"), own, 7)
    header, [seen] = avro_parts(files[0].read_bytes())
    _, [hidden] = avro_parts(files[1].read_bytes())
    local_path(manifest.manifest_path).write_bytes(avro_file(header, [seen, (0, b""), hidden]))
    answer = one(shop, shop.snapshot([manifest], own, 7, shop.head), WALT)
    assert answer.code == 400
    assert "has data after an empty block" in answer.body["error"]["message"]


def test_a_manifest_without_its_file_is_refused(shop: Shop) -> None:
    """A snapshot whose manifest does not exist is refused with 400, not with 403. Otherwise a client could write the
    file after the commit, without any check."""
    own = shop.orders.location()
    updates = shop.snapshot([], own, 7, shop.head)
    updates[0]["snapshot"]["manifest-list"] = f"{own}/metadata/later.avro"
    assert one(shop, updates, WALT).code == 400
    manifest = shop.manifest(shop.file_of("shop.orders"), own, 8)
    manifest._data[0] = f"{own}/metadata/later-m0.avro"
    assert one(shop, shop.snapshot([manifest], own, 8, shop.head), WALT).code == 400


def test_a_new_table_names_its_own_files_from_the_start(shop: Shop) -> None:
    """The snapshot with which a table is created is checked like later snapshots."""
    id = str(uuid.uuid4())
    folder = f"{shop.lake.uri}shop/made-{id[:8]}"
    updates = [
        *new_table(id),
        {"action": "set-location", "location": folder},
        *shop.snapshot([shop.manifest(shop.file_of("hr.pay"), folder, 7)], folder, 7, None),
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    for path, sent in (
        ("/v1/namespaces/shop/tables/made", body),
        (
            "/v1/transactions/commit",
            {"table-changes": [{"identifier": {"namespace": ["shop"], "name": "made"}, **body}]},
        ),
    ):
        assert shop.client("POST", path, sent, token=WALT).code == 403
    assert not shop.lake.exists("shop.made")


def test_a_commit_of_several_tables_stages_all_or_none(shop: Shop) -> None:
    """If one table of a commit is refused in an open transaction, none of the tables changes."""
    odd = shop.file_of("shop.orders")
    odd._data[1] = odd.file_path + "?x"
    shop.lake.create_table("shop.other", shop.orders.schema().as_arrow())
    changes = [
        {
            "identifier": {"namespace": ["shop"], "name": "other"},
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
        },
        {
            "identifier": {"namespace": ["shop"], "name": "orders"},
            "requirements": [],
            "updates": shop.snapshot(
                [shop.manifest(odd, shop.orders.location(), 7)], shop.orders.location(), 7, shop.head
            ),
        },
    ]
    assert shop.client("POST", "/v1/transactions/commit", {"table-changes": changes}, token=ROOT).code == 400
    assert "a" not in shop.lake.table("shop.other").properties


def test_its_own_files_are_committed_and_a_reader_of_everything_may_add_others(shop: Shop) -> None:
    own = shop.orders.location()
    file = shop.file_of("shop.orders")
    assert one(shop, shop.snapshot([shop.manifest(file, own, 7)], own, 7, shop.head), WALT).code == 200
    secret = shop.manifest(shop.file_of("hr.pay"), own, 8)
    assert one(shop, shop.snapshot([secret], own, 8, shop.head), ROOT).code == 200
    # A writer may carry the files that the table has by then into a new manifest.
    known = shop.manifest(shop.file_of("hr.pay"), own, 9, ManifestEntryStatus.EXISTING)
    assert one(shop, shop.snapshot([known], own, 9, shop.head), WALT).code == 200


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_limits, "MAX_INCOMING_FILES", 5)


def many(shop: Shop, count: int, id: int) -> list[dict[str, Any]]:
    """A snapshot with `count` manifests, each of which names another file of the table."""
    own = shop.orders.location()
    return shop.snapshot(shop.manifests(own, count, id), own, id, shop.head)


@pytest.mark.parametrize("token", [WALT, ROOT])
@pytest.mark.parametrize("send", [one, several])
def test_the_number_of_manifests_of_a_commit_is_limited(
    shop: Shop, send: Send, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of manifests of a commit has a limit. A list of a few megabytes can name a hundred thousand manifests,
    all of which the server would read before it responds."""
    before = shop.lake.version
    for limit, value in (("MAX_INCOMING_FILES", 6), ("MAX_SIZE_BYTES", 1000), ("MAX_ENTRIES", 11)):
        with monkeypatch.context() as patched:
            patched.setattr(metadata_limits, limit, value)
            answer = send(shop, many(shop, 6, 7), token)
        assert (answer.code, answer.error) == (413, "RequestTooLargeException"), (limit, answer)
        assert "Commit in parts" in answer.body["error"]["message"]
    assert shop.lake.version == before
    monkeypatch.setattr(metadata_limits, "MAX_INCOMING_FILES", 7)
    assert send(shop, many(shop, 6, 8), token).code in (200, 204)


def test_the_tables_of_a_commit_share_its_limit(shop: Shop, small_limits: None) -> None:
    shop.lake.create_table("shop.other", shop.orders.schema().as_arrow())
    orders, others = shop.orders, shop.lake.table("shop.other").iceberg
    changes = []
    for name, table, id in (("orders", orders, 7), ("other", others, 8)):
        folder = table.location()
        parent = table.metadata.current_snapshot_id
        updates = shop.snapshot(shop.manifests(folder, 3, id), folder, id, parent)
        changes.append({"identifier": {"namespace": ["shop"], "name": name}, "requirements": [], "updates": updates})
    both = shop.client("POST", "/v1/transactions/commit", {"table-changes": changes}, token=WALT)
    assert (both.code, both.error) == (413, "RequestTooLargeException")
    for change in changes:
        assert shop.client("POST", "/v1/transactions/commit", {"table-changes": [change]}, token=WALT).code == 204


def test_manifests_of_registered_and_present_tables_count(shop: Shop, small_limits: None) -> None:
    """Manifests that are read to find out whether a table already has an ambiguous name count towards the limit of the
    request."""
    assert one(shop, many(shop, 4, 7), WALT).code == 200
    assert one(shop, many(shop, 4, 8), WALT).code == 200
    own, odd = shop.orders.location(), shop.file_of("shop.orders")
    odd._data[1] = odd.file_path + "?x"
    known = shop.manifest(odd, own, 9, ManifestEntryStatus.EXISTING)
    assert one(shop, shop.snapshot([known], own, 9, shop.head), WALT).code == 413

    location = shop.lake.table("shop.orders").iceberg.metadata_location
    body = {"name": "again", "metadata-location": location}
    answer = shop.client("POST", "/v1/namespaces/shop/register", body, token=ROOT)
    assert (answer.code, answer.error) == (413, "RequestTooLargeException")
    assert not shop.lake.exists("shop.again")


def avro(entries: int, size_bytes: int) -> bytes:
    """A file without content whose header claims a number of entries."""
    header = b"Obj\x01\x02\x14avro.codec\x08null\x00" + bytes(16)
    return header + zigzag(entries) + zigzag(size_bytes) + bytes(size_bytes) + bytes(16)


def test_all_requests_share_the_limit_of_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent requests share one limit of manifest entries. One request may read half a million entries, which take
    more than a gigabyte."""
    monkeypatch.setattr(metadata_limits, "MAX_ENTRIES", 100)
    work = metadata_limits.ManifestLimit()
    with work.for_plan("ana") as first, work.for_commit("ana") as second, work.for_plan("bob") as other:
        first.spend(avro(40, 10), "m0")
        with pytest.raises(RestError, match="too many manifests") as caught:
            second.spend(avro(20, 10), "m1")  # more than half of the limit for one principal
        assert caught.value.code == 503
        with pytest.raises(RestError):
            other.spend(avro(70, 10), "m2")
    with work.for_plan("ana") as alone:
        alone.spend(avro(100, 10), "m0")  # ended requests release their share
        with work.for_plan("bob") as other, pytest.raises(RestError):
            other.spend(avro(1, 10), "m1")
    monkeypatch.setattr(metadata_limits, "MAX_SIZE_BYTES", 1000)
    work = metadata_limits.ManifestLimit()
    with work.for_plan("ana") as first, work.for_plan("bob") as other:
        first.spend(avro(1, 600), "m0")
        with pytest.raises(RestError):
            other.spend(avro(1, 600), "m1")
