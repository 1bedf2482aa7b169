"""Summaries: the log has one line for the changes of every transaction, from any client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import trinitylake as tl
from local_files import age
from trinitylake.iceberg.catalog import TrinityLakeCatalog
from waiting import in_threads

ROWS = pa.table({"id": pa.array(range(3000), pa.int64()), "city": ["Zürich"] * 3000})


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", ROWS.schema)
        txn.create_table("shop.items", {"id": "int8", "price": "int8"}, primary_key="id")
    return lake


def summary(lake: tl.Lakehouse) -> str:
    """The summary of the only transaction in the newest version."""
    [transaction] = lake.log(1)[0].transactions
    return transaction.summary


def test_commit_without_a_message_has_a_summary(shop: tl.Lakehouse) -> None:
    """The log has a summary of each transaction's changes, because few writers give a message."""
    assert summary(shop) == "create namespace shop; create table shop.items; create table shop.orders"
    with shop.transaction() as txn:
        txn.table("shop.orders").append(ROWS)
        with txn.table("shop.items").update_schema() as update:
            update.add_column("stock", LongType())
    assert summary(shop) == "schema shop.items +1 column; append +3,000 rows shop.orders"
    assert shop.log(1)[0].summary == summary(shop)
    assert summary(shop) in repr(shop.log(1)[0])
    assert summary(shop) in repr(txn)
    assert txn.summary == summary(shop)
    [change] = shop.changes(shop.version - 1)
    assert change.transaction.summary == summary(shop)
    assert shop.log(of="shop.orders")[0].transaction.summary == summary(shop)  # type: ignore[union-attr]


STATEMENTS: dict[str, tuple[Callable[[tl.Lakehouse], object], str]] = {
    "append": (lambda lake: lake.table("shop.items").append([{"id": 4, "price": 1}]), "append +1 row shop.items"),
    "delete": (lambda lake: lake.table("shop.items").delete("id = 1"), "delete -1 row shop.items"),
    "overwrite": (
        lambda lake: lake.table("shop.items").overwrite([{"id": 9, "price": 9}]),
        "overwrite +1 -3 rows shop.items",
    ),
    "upsert": (
        lambda lake: lake.table("shop.items").upsert([{"id": 1, "price": 5}, {"id": 7, "price": 7}]),
        "upsert +1 ~1 rows shop.items",
    ),
    # A summary of UPDATE counts updated rows. It used to say "overwrite".
    "update in SQL": (
        lambda lake: lake.sql("UPDATE shop.items SET price = 5 WHERE id = 1"),
        "update ~1 row shop.items",
    ),
    "merge": (
        lambda lake: lake.table("shop.items").merge([{"id": 1, "price": 5}], on="id").when_matched_update().execute(),
        "merge ~1 row shop.items",
    ),
    "merge in SQL": (
        lambda lake: lake.sql(
            "MERGE INTO shop.items AS t USING (SELECT unnest([1, 2, 7]) AS id) AS s ON s.id = t.id "
            "WHEN MATCHED AND s.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET price = 0 "
            "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, 9)"
        ),
        "merge +1 -1 ~1 rows shop.items",
    ),
    "properties": (lambda lake: lake.alter_table("shop.items", {"color": "red"}), "properties shop.items"),
    "create view": (lambda lake: lake.create_view("shop.v", "SELECT 1"), "create view shop.v"),
    "rename": (lambda lake: lake.rename_table("shop.items", "shop.goods"), "rename table shop.items to shop.goods"),
    "drop": (lambda lake: lake.drop_table("shop.items"), "drop table shop.items"),
    "alter namespace": (lambda lake: lake.alter_namespace("shop", {"a": "b"}), "alter namespace shop"),
    "alter": (lambda lake: lake.alter({"stage": "test"}), "alter the lakehouse"),
    "tag": (lambda lake: lake.tags.create("q3", version=1), "tag version 1 as q3"),
    "rollback": (lambda lake: lake.rollback(1), "roll back to version 1"),
    "restore": (lambda lake: lake.rollback(1, objects=["shop.items"]), "restore table shop.items"),
    "cascade": (
        lambda lake: lake.drop_namespace("shop", cascade=True),
        "drop namespace shop; drop table shop.items; drop table shop.orders",
    ),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_each_statement_has_a_summary(shop: tl.Lakehouse, name: str) -> None:
    shop.table("shop.items").append([{"id": id, "price": 1} for id in (1, 2, 3)])
    statement, expected = STATEMENTS[name]
    statement(shop)
    assert summary(shop) == expected


def test_log_prints_one_line_per_version(shop: tl.Lakehouse) -> None:
    shop.table("shop.items").append([{"id": 1, "price": 1}], message="more\n\x1b[31mitems", author="ann")
    newest, first, begun = str(shop.log()).splitlines()
    at = f"{shop.log(1)[0].created_at:%Y-%m-%d %H:%M:%S}Z"
    assert newest == rf"2  {at}  ann  more; \u{{1b}}[31mitems: append +1 row shop.items"
    assert first.endswith("Z  create namespace shop; create table shop.items; create table shop.orders")
    assert begun == f"0  {shop.at(0).created_at:%Y-%m-%d %H:%M:%S}Z"
    assert str(shop.log(1)[0]) == newest


def test_statement_results_count_updated_rows(shop: tl.Lakehouse) -> None:
    shop.table("shop.items").append([{"id": id, "price": 1} for id in range(100)])
    first = shop.begin(id="prices")
    first.sql("UPDATE shop.items SET price = 2 WHERE id < 30")
    first.save()
    assert first.summary == "update ~30 rows shop.items"
    resumed = shop.resume("prices")
    resumed.sql("UPDATE shop.items SET price = 3 WHERE id < 5")
    shop.table("shop.items").append([{"id": 100, "price": 1}])
    resumed.commit()  # rebased on the appends of others
    assert summary(shop) == "update ~35 rows shop.items"
    with shop.transaction() as txn:
        items = txn.table("shop.items")
        items.merge({"id": [1, 2, 500]}, on="id").when_matched_update({"price": "9"}).execute()
        items.upsert([{"id": 1, "price": 5}, {"id": 501, "price": 7}])
        items.delete("id = 3")
    assert summary(shop) == "overwrite +1 -1 ~3 rows shop.items"
    shop.sql("UPDATE shop.items SET price = 3 WHERE id < 0")
    assert shop.log(1)[0].summary == "overwrite +1 -1 ~3 rows shop.items"  # no version without a changed row
    with shop.transaction() as txn:
        txn.create_table("shop.new", {"id": "bigint"}).append({"id": [1, 2, 3]})
        txn.sql("UPDATE shop.new SET id = 4 WHERE id = 3")
    assert summary(shop) == "create table shop.new +3 ~1 rows"


def test_summaries_leave_out_properties_that_writers_set(shop: tl.Lakehouse) -> None:
    name_mapping = "schema.name-mapping.default"
    table = shop.table("shop.orders").iceberg
    table.transaction().set_properties(
        {name_mapping: table.schema().name_mapping.model_dump_json()}
    ).commit_transaction()
    assert summary(shop) == "properties shop.orders"
    before = shop.table("shop.orders").properties[name_mapping]
    rows = ROWS.append_column("note", pa.array(["new"] * 3000))
    shop.table("shop.orders").append(rows, evolve_schema=True)
    assert shop.table("shop.orders").properties[name_mapping] != before
    assert summary(shop) == "append +3,000 rows shop.orders; schema shop.orders +1 column"
    with shop.transaction() as txn:
        txn.table("shop.orders").delete("id = 1")
        txn.alter_table("shop.orders", {"owner": "ann"})
    assert summary(shop) == "delete -1 row shop.orders; properties shop.orders"
    shop.table("shop.orders").iceberg.transaction().remove_properties(name_mapping).commit_transaction()
    assert summary(shop) == "properties shop.orders"


def test_summaries_merge_changes_of_new_and_renamed_tables(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        txn.create_table("shop.new", ROWS.schema).append(ROWS)
    assert summary(shop) == "create table shop.new +3,000 rows"
    with shop.transaction() as txn:
        txn.rename_table("shop.new", "shop.newer")
        txn.table("shop.newer").append(ROWS)
        txn.rename_table("shop.newer", "shop.newest")
    assert summary(shop) == "rename table shop.new to shop.newest; append +3,000 rows shop.newest"
    with shop.transaction() as txn:
        txn.rename_table("shop.newest", "shop.new")
        txn.table("shop.new").delete("id < 1000")
        txn.save()
    assert txn.summary == "rename table shop.newest to shop.new; delete -2,000 rows shop.new"


def test_the_summary_of_a_saved_transaction_includes_its_earlier_statements(shop: tl.Lakehouse) -> None:
    first = shop.begin(id="etl-1")
    first.table("shop.orders").append(ROWS)
    first.rename_table("shop.items", "shop.goods")
    first.save()
    assert first.summary == "rename table shop.items to shop.goods; append +3,000 rows shop.orders"
    resumed = tl.open(shop.uri).resume("etl-1") if not shop.uri.startswith("memory") else shop.resume("etl-1")
    resumed.table("shop.orders").append(ROWS)
    resumed.commit()
    assert summary(shop) == "rename table shop.items to shop.goods; append +6,000 rows shop.orders"
    gone = shop.begin(id="etl-2")
    gone.create_namespace("never")
    gone.save()
    gone.rollback()
    assert summary(shop) == "roll back transaction etl-2"


def test_rows_are_counted_after_a_race_as_they_were_committed(shop: tl.Lakehouse) -> None:
    """The numbers of rows in a summary are those of the committed attempt, also if a delete removed other rows after a
    conflict."""
    shop.table("shop.orders").append(ROWS)
    slow = shop.begin()
    slow.table("shop.orders").append(ROWS)
    shop.table("shop.orders").append(ROWS.slice(0, 10))
    slow.commit()
    assert summary(shop) == "append +3,000 rows shop.orders"
    assert slow.summary == summary(shop)


def test_transactions_of_a_group_commit_have_their_own_summaries(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        lake.create_namespace(f"n{number}")

    in_threads(work, range(8))
    transactions = [one for entry in lake.log(None) for one in entry.transactions]
    assert sorted(one.summary for one in transactions) == [f"create namespace n{number}" for number in range(8)]


def test_summary_of_many_objects_is_short(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        for number in range(200):
            txn.create_namespace(f"space{number}")
        txn.drop_table("shop.items")
    assert summary(shop) == "create 200 namespaces; drop table shop.items"
    with shop.transaction() as txn:
        for number in range(4):
            txn.create_namespace("x" * 99 + str(number))
    assert len(summary(shop).encode()) <= 300


HOSTILE = {
    "a; drop table shop.orders": '"a; drop table shop.orders"',
    "[red]": '"[red]"',
    "x\u202egnp": '"x\\u{202e}gnp"',
    "y\u009b31m": '"y\\u{9b}31m"',
    'quo"te': '"quo\\"te"',
    "two words": '"two words"',
}


def test_names_in_summaries_are_unambiguous(shop: tl.Lakehouse) -> None:
    """Names in a summary are escaped, so that a table called `a; drop table shop.orders` does not look like a
    statement."""
    for name in HOSTILE:
        with shop.transaction() as txn:
            txn.create_table(("shop", name), ROWS.schema)
        assert summary(shop) == f"create table shop.{HOSTILE[name]}"
        assert summary(shop).isprintable()


def test_pyiceberg_and_bulk_registration_have_summaries(shop: tl.Lakehouse) -> None:
    catalog = TrinityLakeCatalog.of(shop) if hasattr(TrinityLakeCatalog, "of") else tl.iceberg.load(shop.uri)
    catalog.create_table("shop.made", ROWS.schema)
    assert summary(shop) == "create table shop.made"
    catalog.load_table("shop.orders").append(ROWS)
    assert summary(shop) == "append +3,000 rows shop.orders"
    catalog.create_namespace("other")
    assert summary(shop) == "create namespace other"
    shop.register(
        pa.table({"kind": ["namespace"] * 30, "namespace": [f"bulk{i}" for i in range(30)], "name": [""] * 30})
    )
    assert summary(shop) == "register 30 namespaces"


def test_summary_of_expiry_counts_forgotten_ids(shop: tl.Lakehouse) -> None:
    for number in range(6):
        with shop.transaction(id=f"job-{number}") as txn:
            txn.create_namespace(f"n{number}")
    shop.maintenance.expire(before=shop.version)
    assert summary(shop) == "forget 5 transactions"


def test_maintenance_has_a_summary(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for number in range(4):
        lake.create_namespace(f"n{number}")
    lake.drop_namespace("n0")
    lake.maintenance.expire(before=lake.version)
    age(tmp_path / "lake", 30 * 86_400)
    lake.maintenance.vacuum()
    assert summary(lake) == "vacuum files that no version reaches"
    lake.maintenance.compact(force=True)
    assert summary(lake) == "compact the tree"


def test_summary_of_an_export_names_the_source_version(shop: tl.Lakehouse, tmp_path: Path) -> None:
    shop.export(str(tmp_path / "copy"), version=1, mode="minimal")
    copy = tl.open(str(tmp_path / "copy"))
    assert "copy of version 1" in {one.summary for entry in copy.log(None) for one in entry.transactions}


def test_autocommit_statements_accept_message_and_author(shop: tl.Lakehouse) -> None:
    note = {"message": "nightly load", "author": "ann"}
    items = shop.table("shop.items")
    items.append([{"id": 1, "price": 1}], **note)
    items.upsert([{"id": 1, "price": 2}], **note)
    items.overwrite([{"id": 1, "price": 3}], **note)
    items.delete("id = 1", **note)
    items.merge([{"id": 1, "price": 4}], **note).when_not_matched_insert().execute()
    with items.update_schema(**note) as schema:
        schema.add_column("stock", LongType())
    shop.create_namespace("n", **note)
    shop.alter_namespace("n", {"a": "b"}, **note)
    shop.drop_namespace("n", **note)
    shop.create_table("shop.t", ROWS.schema, **note)
    shop.alter_table("shop.t", {"a": "b"}, **note)
    shop.rename_table("shop.t", "shop.u", **note)
    shop.drop_table("shop.u", **note)
    shop.create_view("shop.v", "SELECT 1", **note)
    shop.replace_view("shop.v", "SELECT 2", **note)
    shop.rename_view("shop.v", "shop.w", **note)
    shop.drop_view("shop.w", **note)
    shop.alter({"a": "b"}, **note)
    entries = shop.log(18)
    assert {(entry.message, entry.author) for entry in entries} == {("nightly load", "ann")}
    assert all(entry.summary for entry in entries)
    with shop.transaction() as txn:
        for statement in (
            lambda: txn.create_namespace("m", message="why"),
            lambda: txn.table("shop.items").append([{"id": 2, "price": 1}], author="ann"),
        ):
            with pytest.raises(tl.InvalidArgument, match=r"pass them to lake\.transaction"):
                statement()
    with pytest.raises(tl.InvalidArgument, match="message must be a string"):
        shop.create_namespace("m", message=3)  # type: ignore[arg-type]
