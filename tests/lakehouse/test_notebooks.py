"""HTML of handles in notebooks: plain, escaped, and made from few files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_markup import HOSTILE, Page

import trinitylake as tl
from trinitylake.definitions import FEDERATED, TableDef, new_id, serialize
from trinitylake.iceberg import TrinityLakeCatalog
from trinitylake.tables.autocommit_table import AutocommitTable

ROWS = pa.table({"id": [1, 2, 3]})
ALLOWED = {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "code"}
ATTRIBUTES = {"class", "scope"}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", name="flights", durability="none")
    with lake.transaction(message="load", author="etl") as txn:
        txn.create_namespace("nyc", {"owner": "ops"})
        txn.create_table("nyc.t", ROWS, partition_spec=["id"], primary_key=["id"]).append(ROWS)
        txn.create_view("nyc.v", "SELECT 1 < 2", dialect="duckdb")
    lake.tags.create("q3", version=1)
    lake.create_namespace("wrong")
    lake.rollback(1, message="bad load")
    return lake


def handles(lake: tl.Lakehouse, namespace: str = "nyc") -> Iterator[Any]:
    """An object of each class with an HTML form."""
    yield lake
    yield lake.namespace(namespace)
    yield lake.view((namespace, "v"))
    yield lake.at()
    yield lake.log()
    yield lake.log(None)
    yield lake.diff(0)
    yield lake.changes(0)
    yield next(iter(lake.changes(0)))
    yield lake.at().stats()
    yield lake.maintenance.stats(files=True)
    yield lake.maintenance.vacuum(dry_run=True)
    table = lake.table((namespace, "t"))
    yield table
    yield table.schema
    yield table.snapshots()
    yield table.scan("id > 1", limit=5)
    yield lake.at().table((namespace, "t"))
    txn = lake.begin(message="m", author="a", properties={"why": "because"})
    txn.table((namespace, "t")).append(ROWS)
    yield txn
    yield txn.table((namespace, "t"))
    txn.rollback()
    yield txn


def requests(lake: tl.Lakehouse) -> int:
    counted = lake._storage.counters()
    return sum(counted[verb] for verb in ("get", "get_range", "list", "head"))


def shown(handle: Any) -> str:
    source: str = handle._repr_html_()
    assert source.startswith('<div class="trinitylake"><style>')
    page = Page(source)
    assert set(page.elements) <= ALLOWED
    assert set(page.attributes) <= ATTRIBUTES
    source.encode()
    return source


def test_a_scan_of_all_rows_says_so(lake: tl.Lakehouse) -> None:
    lake.create_namespace("shop")
    table = lake.create_table("shop.orders", {"id": "bigint"})
    shown = table.scan()._repr_html_()
    assert "AlwaysTrue" not in shown
    assert re.search(r">rows</th><td[^>]*>all<", shown), shown
    assert re.search(r">rows where</th><td[^>]*>id &gt; 1<", table.scan("id > 1")._repr_html_())
    assert repr(table.scan("id > 1", columns=["id"])) == "Scan('id > 1', columns=['id'])"


def test_the_html_of_every_handle_names_it(lake: tl.Lakehouse) -> None:
    texts = {type(one).__name__: " ".join(Page(shown(one)).text.split()) for one in handles(lake)}
    assert "lakehouse flights" in texts["Lakehouse"]
    assert "ops" in texts["Namespace"]
    assert "SELECT 1 < 2" in texts["View"]
    assert "nyc.t" in texts["LakehouseVersion"]
    assert "the newest 5 of 5 versions" in texts["VersionLog"]
    assert "3 added, 0 removed, 0 changed" in texts["Diff"]
    assert "identity(id)" in texts["AutocommitTable"]
    assert texts["AutocommitTable"].endswith("first rowsid123")
    assert "snapshots of nyc.t 1snapshot" in texts["ShownList"]
    assert "append33" in texts["ShownList"]
    assert "idBIGINTrequiredkey" in texts["Schema"]
    assert "messageload" in texts["TransactionChanges"]
    assert "data files" in texts["Stats"]
    assert "would delete 0 files" in texts["Vacuumed"]
    assert "rows whereid > 1" in texts["Scan"]
    assert "etlload+ namespace nyc + table nyc.t + view nyc.v" in texts["Changes"]
    assert "bad load- namespace wrong" in texts["Changes"]
    assert "rolled back" in texts["Transaction"]
    assert "because" in texts["Transaction"]


def test_showing_changes_leaves_them_to_the_iterator(lake: tl.Lakehouse) -> None:
    changes = lake.changes(0)
    first = next(changes)
    shown(changes)
    assert [first.version, *(one.version for one in changes)] == [1, 2, 3, 4]


def test_the_log_shows_tags_and_rollbacks(lake: tl.Lakehouse) -> None:
    for source in (shown(lake.log()), shown(lake.log(None)), shown(lake)):
        assert re.search(r">q3<", source)
        assert re.search(r">rollback to 1<", source)


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_html_reprs_escape_hostile_texts(tmp_path: Path, place: int) -> None:
    """Commit messages and other strings are escaped in HTML. Otherwise their scripts would run in the notebook."""
    text = HOSTILE[place]
    lake = tl.create(tmp_path / "lake", durability="none")
    said = text.encode("utf-8", "replace").decode()
    name = re.sub(r"[./\\\x00-\x1f\x7f-\x9f\u2028\u202e\u200b]", "_", said)[:60].strip() or "x"
    try:
        lake.create_namespace(name)
        lake.drop_namespace(name)
    except tl.InvalidName:
        name = "nyc"
    with lake.transaction(message=said, author=said[:200], properties={"why": said}) as txn:
        txn.create_namespace(name, {said[:100].replace("\0", "0"): said})
        txn.create_table((name, "t"), pa.table({said[:50]: ["x"], "id": [1]})).append(
            {said[:50]: [said[:50]], "id": [1]}
        )
        txn.create_view((name, "v"), said, dialect="duckdb")
    lake.rollback(0, message=said, author=said[:200])
    lake.rollback(lake.version - 1)
    for handle in handles(lake, name):
        source = shown(handle)
        assert not any(sign in source for sign in "\0\x1b\x7f\x85\u202e\u200b\u2028")
        assert "<script" not in source


def test_html_repr_of_a_deleted_lakehouse(lake: tl.Lakehouse, tmp_path: Path) -> None:
    before = [*handles(lake)]
    (tmp_path / "lake").rename(tmp_path / "away")
    for handle in before:
        assert shown(handle)
    assert 'class="problem"' in shown(lake)


def test_a_damaged_version_is_part_of_the_log(lake: tl.Lakehouse, tmp_path: Path) -> None:
    from trinitylake import core

    (tmp_path / "lake" / core.root_path(2)).write_bytes(b"damaged")
    assert 'class="problem"' in shown(tl.open(lake.uri).log())


def test_html_reprs_read_a_bounded_number_of_files(tmp_path: Path) -> None:
    """Showing a lakehouse reads only a few files, also with 10,000 tables."""
    root = tmp_path / "lake"
    lake = tl.create(root, order=8, durability="none")
    with lake.transaction() as txn:
        for number in range(300):
            txn.create_namespace(f"n{number:03}")
    for number in range(30):
        lake.create_namespace(f"m{number:03}")
    for draw in (lambda one: one, lambda one: one.at(), lambda one: one.log(None), lambda one: one.log(5)):
        one = tl.open(root)
        handle = draw(one)
        before = requests(one)
        assert shown(handle)
        assert requests(one) - before <= 40, handle
    assert "and more" in shown(tl.open(root))


def test_html_repr_of_a_federated_table_does_not_open_it(lake: tl.Lakehouse) -> None:
    """Showing a federated table does not access the other catalog, which may not answer."""
    there = {"uri": "http://127.0.0.1:9/none", "type": "rest", "trinitylake.catalog": "far", "trinitylake.table": "a.b"}
    definition = TableDef(id=new_id(), table_type=FEDERATED, format_properties=there)
    assert "federated" in shown(AutocommitTable(lake, "nyc", "far", serialize(definition)))


def test_an_external_table_shows_its_columns(lake: tl.Lakehouse, tmp_path: Path) -> None:
    other = tl.create(tmp_path / "other", durability="none")
    other.create_namespace("nyc")
    TrinityLakeCatalog(lakehouse=lake).register_table(
        "nyc.there", other.create_table("nyc.t", ROWS).iceberg.metadata_location
    )
    assert "external" in shown(lake.table("nyc.there"))


def test_html_tables_have_headers_for_screen_readers(lake: tl.Lakehouse) -> None:
    for handle in handles(lake):
        source = shown(handle)
        assert source.count("<th") >= source.count("<table")
        assert all("scope=" in one for one in re.findall("<th[^>e][^>]*>|<th>", source))
