"""DuckDB, unmodified, with its own Iceberg extension: attach, read, write, and BEGIN … COMMIT over two tables."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pytest
from moto.s3.responses import S3Response
from moto.sts.models import STSBackend
from pyiceberg.types import IntegerType
from starlette.responses import Response

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from s3_server import S3Server
from trinitylake.rest import RestServer, S3Access, ServerOptions
from trinitylake.rest.http.app import App

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
#: Each extension needs the ones before it.
EXTENSIONS = ("httpfs", "avro", "iceberg")


def extension(name: str) -> Path:
    """The file of an extension, which is installed as a Python package."""
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.rglob(f"{name}.duckdb_extension"))


def attached(server: RestServer, warehouse: str = "@latest") -> duckdb.DuckDBPyConnection:
    """DuckDB with the catalog attached as `lake`."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in EXTENSIONS:
        connection.execute(f"LOAD '{extension(name)}'")
    connection.execute(
        f"ATTACH '{warehouse}' AS lake (TYPE iceberg, ENDPOINT '{server.url}', AUTHORIZATION_TYPE 'none')"
    )
    return connection


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Two tables with three rows each."""
    return with_tables(lake, "shop.orders", "shop.totals", rows=ROWS)


def count(lake: tl.Lakehouse, table: str) -> int:
    return int(lake.table(table).scan().to_arrow().num_rows)


def test_duckdb_reads_and_writes_tables(open_server: RestServer, shop: tl.Lakehouse) -> None:
    with attached(open_server) as connection:
        assert connection.execute("SELECT id, name FROM lake.shop.orders ORDER BY id").fetchall() == [
            (1, "a"),
            (2, "b"),
            (3, "c"),
        ]
        connection.execute("INSERT INTO lake.shop.orders VALUES (4, 'd')")
        connection.execute("CREATE TABLE lake.shop.fresh AS SELECT 7 AS n")
        assert connection.execute("SELECT count(*) FROM lake.shop.orders").fetchall() == [(4,)]
        connection.execute("DELETE FROM lake.shop.orders WHERE id = 1")
    assert sorted(shop.table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [2, 3, 4]
    assert shop.table("shop.fresh").scan().to_arrow().to_pylist() == [{"n": 7}]


def test_a_transaction_of_duckdb_over_two_tables_is_one_version(open_server: RestServer, shop: tl.Lakehouse) -> None:
    before = shop.version
    with attached(open_server) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO lake.shop.orders VALUES (4, 'd')")
        connection.execute("INSERT INTO lake.shop.totals VALUES (4, 'd'), (5, 'e')")
        assert (count(shop, "shop.orders"), count(shop, "shop.totals")) == (3, 3)
        connection.execute("COMMIT")
    assert shop.version == before + 1
    assert (count(shop, "shop.orders"), count(shop, "shop.totals")) == (4, 5)


def test_a_transaction_of_duckdb_that_lost_a_race_changes_no_table(open_server: RestServer, shop: tl.Lakehouse) -> None:
    with attached(open_server) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO lake.shop.orders VALUES (4, 'd')")
        connection.execute("DELETE FROM lake.shop.totals WHERE id = 1")
        shop.table("shop.totals").overwrite(ROWS)
        before = shop.version
        with pytest.raises(duckdb.Error):
            connection.execute("COMMIT")
    assert shop.version == before
    assert (count(shop, "shop.orders"), count(shop, "shop.totals")) == (3, 3)


def test_two_engines_work_in_one_open_transaction(open_server: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(open_server)
    id = client("POST", "/trinitylake/v1/transactions", {"message": "together"}).body["id"]
    with attached(open_server, f"@txn/{id}") as one, attached(open_server, f"@txn/{id}") as other:
        one.execute("INSERT INTO lake.shop.orders VALUES (4, 'd')")
        assert other.execute("SELECT count(*) FROM lake.shop.orders").fetchall() == [(4,)]
        other.execute("INSERT INTO lake.shop.totals SELECT * FROM lake.shop.orders")
    assert (count(shop, "shop.orders"), count(shop, "shop.totals")) == (3, 3)
    assert client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    assert (count(shop, "shop.orders"), count(shop, "shop.totals")) == (4, 7)


@pytest.fixture
def things(shop: tl.Lakehouse) -> tl.Lakehouse:
    """The shop with another table, of format version 3, with three rows."""
    shop.create_table("shop.things", ROWS, properties={"format-version": "3"}).append(ROWS)
    return shop


def test_duckdb_and_pyiceberg_write_a_table_of_format_version_3_in_one_transaction(
    open_server: RestServer, things: tl.Lakehouse
) -> None:
    """DuckDB assigns row ids by the metadata that it loaded. The commit replaces them by unused ids."""
    client = Client(open_server)
    id = client("POST", "/trinitylake/v1/transactions", {"message": "together"}).body["id"]
    with attached(open_server, f"@txn/{id}") as connection:
        connection.execute("INSERT INTO lake.shop.things VALUES (4, 'd'), (5, 'e')")
        things.table("shop.things").append(ROWS)
        connection.execute("INSERT INTO lake.shop.orders SELECT id, name FROM lake.shop.things WHERE id = 5")
        assert connection.execute("SELECT count(*) FROM lake.shop.things").fetchall() == [(5,)]
    assert client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    assert (count(things, "shop.things"), count(things, "shop.orders")) == (8, 4)
    metadata = things.table("shop.things").iceberg.metadata
    ranges = [(one.first_row_id, one.added_rows) for one in metadata.snapshots]
    assert ranges == [(0, 3), (3, 3), (6, 2)]
    assert metadata.next_row_id == 8


def test_duckdb_deletes_and_updates_rows_of_format_version_3(open_server: RestServer, things: tl.Lakehouse) -> None:
    with attached(open_server) as connection:
        connection.execute("DELETE FROM lake.shop.things WHERE id = 1")
        connection.execute("UPDATE lake.shop.things SET name = 'z' WHERE id = 2")
        rows = connection.execute("SELECT id, name FROM lake.shop.things ORDER BY id").fetchall()
        assert rows == [(2, "z"), (3, "c")]
    found = sorted(tuple(row.values()) for row in things.table("shop.things").scan().to_arrow().to_pylist())
    assert found == rows
    formats = things.table("shop.things").iceberg.inspect.delete_files()["file_format"].to_pylist()
    assert set(formats) == {"PUFFIN"}


def test_duckdb_reads_default_values_and_nanoseconds(open_server: RestServer, shop: tl.Lakehouse) -> None:
    nanos = [1_700_000_000_123_456_789, -1]
    rows = pa.table({"id": [1, 2], "t": pa.array(nanos, pa.timestamp("ns"))})
    table = shop.create_table("shop.times", rows, properties={"format-version": "3"})
    table.append(rows)
    with table.update_schema() as change:
        change.add_column("d", IntegerType(), default_value=7)
    with attached(open_server) as connection:
        found = connection.execute("SELECT id, epoch_ns(t), d FROM lake.shop.times ORDER BY id").fetchall()
        assert found == [(1, nanos[0], 7), (2, nanos[1], 7)]


def test_other_columns_of_a_table_with_a_variant_are_read(open_server: RestServer, shop: tl.Lakehouse) -> None:
    """Queries, row changes, change feeds and compaction of a table with a variant work for the other columns. If a
    statement needs the variant, the error names the column and the next step."""
    with attached(open_server) as connection:
        connection.execute("CREATE TABLE lake.shop.v (id bigint, what VARIANT) WITH ('format-version' = '3')")
        connection.execute("INSERT INTO lake.shop.v VALUES (1, 5::VARIANT), (2, 'x'::VARIANT), (3, 'y'::VARIANT)")
        connection.execute("INSERT INTO lake.shop.v VALUES (4, 'z'::VARIANT)")
        shop.alter_table("shop.v", {"write.delete.mode": "merge-on-read"})
        shop.table("shop.v").delete("id = 1")
        shop.sql("DELETE FROM shop.v WHERE id IN (SELECT 3)")
        connection.execute("UPDATE lake.shop.v SET id = 5 WHERE id = 4")
        shop.sql("DELETE FROM shop.v WHERE id = 5")
        assert connection.execute("FROM lake.shop.v").fetchall() == [(2, "x")]
    table = shop.table("shop.v")
    assert table.scan(columns=["id"]).to_arrow()["id"].to_pylist() == [2]
    assert shop.sql("SELECT a.id FROM shop.v a JOIN shop.v USING (id) WHERE id > 0").fetchall() == [(2,)]
    assert shop.sql("SELECT * EXCLUDE (what) FROM shop.v").fetchall() == [(2,)]
    changes = table.changes(0).read_all()
    assert changes.column_names[:2] == ["id", "_change_type"]
    sql = "SELECT id, _change_type FROM table_changes('shop.v', 0)"
    assert shop.sql(sql).to_arrow().to_pylist() == changes.select([0, 1]).to_pylist()
    counts: Counter[int] = Counter()
    for row in changes.to_pylist():
        counts[row["id"]] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
    assert +counts == {2: 1}
    assert not -counts
    entries = [one for entry in shop.changes(0, rows=True) for one in entry.rows if one.name == "shop.v"]
    assert sum(len(one.read().read_all()) for one in entries) == len(changes)
    for process in (
        table.scan().to_arrow,
        lambda: table.append({"id": [3]}),
        lambda: table.changes(0, columns=["what"]),
        lambda: table.maintenance.compact(min_files=1),
        lambda: shop.sql("SELECT id FROM shop.v WHERE what IS NULL").fetchall(),
        lambda: shop.sql("UPDATE shop.v SET id = 7"),
        lambda: shop.sql("UPDATE shop.v SET what = 'a'"),
        lambda: shop.sql("MERGE INTO shop.v USING (SELECT 2 i) s ON id = i WHEN MATCHED THEN UPDATE SET what = 1"),
    ):
        with pytest.raises(tl.InvalidArgument, match=r"column what .*variant"):
            process()


@pytest.mark.parametrize("version", ["2", "3"])
def test_duckdb_and_our_writers_delete_rows_of_one_file_in_turn(
    open_server: RestServer, shop: tl.Lakehouse, version: str
) -> None:
    """DuckDB and this library read each other's delete files, and replace these files by their own."""
    modes = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}
    table = shop.create_table("shop.turns", ROWS, properties={**modes, "format-version": version})
    expected = {id: "x" for id in range(20)}
    table.append({"id": list(expected), "name": list(expected.values())})
    for step in range(3):
        table.refresh()
        table.delete(f"id = {step}")
        table.upsert({"id": [10 + step], "name": ["ours"]}, on="id")
        with attached(open_server) as connection:
            rows = connection.execute("SELECT id, name FROM lake.shop.turns").fetchall()
            expected = {id: name for id, name in expected.items() if id != step} | {10 + step: "ours"}
            assert sorted(rows) == sorted(expected.items())
            connection.execute(f"DELETE FROM lake.shop.turns WHERE id = {5 + step}")
            connection.execute(f"UPDATE lake.shop.turns SET name = 'duck' WHERE id = {15 + step}")
        expected = {id: name for id, name in expected.items() if id != 5 + step} | {15 + step: "duck"}
        found = shop.table("shop.turns").scan().to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)) == expected
    assert shop.maintenance.fsck("all").is_sound


def test_duckdb_reads_the_past(open_server: RestServer, shop: tl.Lakehouse) -> None:
    version = shop.version
    shop.table("shop.orders").append(ROWS)
    with attached(open_server, f"@version/{version}") as connection:
        assert connection.execute("SELECT count(*) FROM lake.shop.orders").fetchall() == [(3,)]
        with pytest.raises(duckdb.Error):
            connection.execute("INSERT INTO lake.shop.orders VALUES (9, 'z')")
    assert count(shop, "shop.orders") == 6


def test_files_on_s3_are_reached_with_vended_credentials(lake_on_s3: tl.Lakehouse, s3: S3Server) -> None:
    access = S3Access(role_arn="arn:aws:iam::123456789012:role/lake", storage_options=s3.storage_options)
    with running(lake_on_s3, options=ServerOptions(s3_access=access)) as server:
        connection = attached(server)
        assert connection.execute("SELECT sum(id) FROM lake.shop.orders").fetchone() == (6,)
        connection.execute("INSERT INTO lake.shop.orders VALUES (4)")
    assert count(lake_on_s3, "shop.orders") == 4


class Enforced:
    """A store with access control, which moto lacks: vended credentials can do only what their session policy allows.
    `denied` contains the refused requests."""

    ACTIONS: ClassVar = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject"}

    def __init__(self) -> None:
        self.policies: dict[str, Any] = {}
        self.denied: list[str] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        with (
            mock.patch.object(STSBackend, "assume_role", self._remembering(STSBackend.assume_role)),
            mock.patch.object(S3Response, "_key_response", self._checking(S3Response._key_response)),
            mock.patch.object(S3Response, "_bucket_response_delete_keys", self._refuse("POST ?delete")),
        ):
            yield

    def _remembering(self, assume_role: Any) -> Any:
        def assumed(backend: STSBackend, **options: Any) -> Any:
            role = assume_role(backend, **options)
            self.policies[role.access_key_id] = json.loads(options["policy"])
            return role

        return assumed

    def _checking(self, respond: Any) -> Any:
        def response(handler: S3Response, request: Any, url: str) -> Any:
            key = re.search(r"Credential=([^/]+)/", handler.headers.get("Authorization", ""))
            if key is None or (policy := self.policies.get(key[1])) is None:
                return respond(handler, request, url)
            action = self.ACTIONS.get(handler.method, "s3:DeleteObject")
            resource = f"arn:aws:s3:::{unquote(urlsplit(url).path)[1:]}"
            if any(
                action in one["Action"] and any(fnmatchcase(resource, pattern) for pattern in one["Resource"])
                for one in policy["Statement"]
            ):
                return respond(handler, request, url)
            return self._refuse(f"{handler.method} {url}")()

        return response

    def _refuse(self, request: str) -> Any:
        def refused(*_: Any, **__: Any) -> Any:
            self.denied.append(request)
            return 403, {}, "<Error><Code>AccessDenied</Code></Error>"

        return refused


def losing_answers() -> Any:
    """Close the connection of `/transactions/commit` after the commit, without an answer."""
    answer = App._answer

    class Lost(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            raise ConnectionError("the test closes the connection")

    def lost(app: App, endpoint: Any, call: Any) -> Response:
        response = answer(app, endpoint, call)
        return Lost() if endpoint.path.endswith("/transactions/commit") and response.status_code == 204 else response

    return mock.patch.object(App, "_answer", lost)


def test_engine_with_vended_credentials_deletes_no_files_after_a_lost_response(
    lake_on_s3: tl.Lakehouse, s3: S3Server
) -> None:
    """With vended credentials an engine cannot delete files. DuckDB 1.5.5 treats a commit without a response as failed,
    and tries to delete its data files."""
    access = S3Access(role_arn="arn:aws:iam::123456789012:role/lake", storage_options=s3.storage_options)
    enforced = Enforced()
    with enforced.active(), running(lake_on_s3, options=ServerOptions(s3_access=access)) as server:
        connection = attached(server)
        with losing_answers(), pytest.raises(duckdb.Error):
            connection.execute("INSERT INTO lake.shop.orders VALUES (4)")
    assert count(lake_on_s3, "shop.orders") == 4
    assert lake_on_s3.maintenance.fsck(files=True).is_sound
    assert any(one.startswith("DELETE") or "delete" in one for one in enforced.denied), enforced.denied


def test_fsck_rolls_a_table_back_whose_files_an_engine_deleted(shop: tl.Lakehouse, open_server: RestServer) -> None:
    """If an engine has deleted the files of a commit, the repair of fsck rolls the table back. On a local disk DuckDB
    can delete files after it lost the response to a commit."""
    before = shop.version
    with attached(open_server) as connection, losing_answers(), pytest.raises(duckdb.Error):
        connection.execute("INSERT INTO lake.shop.orders VALUES (4, 'd')")
    assert shop.version == before + 1
    with pytest.raises(tl.CorruptFile, match="fsck"):
        shop.table("shop.orders").scan().to_arrow()
    report = shop.maintenance.fsck(files=True)
    assert not report.is_sound
    assert f"version {before} is the newest whose current snapshot" in report.findings[0].message
    planned = shop.maintenance.fsck(files=True, dry_run=True).repair
    assert planned is not None
    assert (planned.version, planned.saved) == (None, (f"table shop.orders as of version {before}",))
    assert planned.lost == (f"table shop.orders: its changes since version {before}",)
    assert shop.version == before + 1
    report = shop.maintenance.fsck(files=True, repair=True)
    assert report.is_sound
    assert report.repair is not None
    assert report.repair.version == shop.version == before + 2
    assert count(shop, "shop.orders") == 3
