"""Every response has `gc.enabled=false`: only the lakehouse deletes files of managed tables.

`expire_snapshots`, `remove_orphan_files` and `DROP TABLE … PURGE` of an engine deleted files that older versions, saved
transactions and even the latest version needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, ROWS, new_table
from trinitylake.iceberg import load

GC = "gc.enabled"
PATH = "/v1/namespaces/shop/tables/orders"


def stored(lake: tl.Lakehouse, name: str = "shop.orders") -> dict[str, Any]:
    """The content of a table's metadata file."""
    path = lake.table(name).iceberg.metadata_location.removeprefix("file://")
    document: dict[str, Any] = json.loads(Path(path).read_bytes())
    return document


def all_files(lake: tl.Lakehouse) -> set[str]:
    root = Path(lake.uri.removeprefix("file://"))
    return {str(one) for one in root.rglob("*") if one.is_file()}


def written_by_a_stranger(lake: tl.Lakehouse, value: str | None) -> str:
    """Write a metadata file as another catalog does, which lets engines delete files. Returns its location."""
    document = stored(lake)
    document["properties"].pop(GC, None)
    if value is not None:
        document["properties"][GC] = value
    folder = Path(document["location"].removeprefix("file://")) / "metadata"
    path = folder / f"00007-0000000{len(value or '')}-0000-4000-8000-000000000000.metadata.json"
    path.write_text(json.dumps(document))
    return f"file://{path}"


@pytest.mark.parametrize("value", [None, "true", "TRUE", ""])
def test_gc_is_disabled_in_every_response(
    http_client: Client, catalog: RestCatalog, shop: tl.Lakehouse, value: str | None
) -> None:
    location = written_by_a_stranger(shop, value)
    body = {"name": "theirs", "metadata-location": location}
    answer = http_client("POST", "/v1/namespaces/shop/register", body)
    assert answer.code == 200, answer
    assert answer.body["metadata"]["properties"][GC] == "false"
    path = "/v1/namespaces/shop/tables/theirs"
    for query in ("", "?snapshots=refs"):
        assert http_client.table(path + query)["properties"][GC] == "false"
    assert http_client.table(f"/v1/version~{shop.version}/namespaces/shop/tables/theirs")["properties"][GC] == "false"
    for one in (catalog, load(shop), load(shop, version=shop.version)):
        assert one.load_table("shop.theirs").properties[GC] == "false"
    assert shop.table("shop.theirs").iceberg.properties[GC] == "false"
    assert shop.at().table("shop.theirs").iceberg.properties[GC] == "false"
    with shop.transaction() as txn:
        assert txn.table("shop.theirs").iceberg.properties[GC] == "false"
        txn.table("shop.theirs").append(ROWS)
    assert stored(shop, "shop.theirs")["properties"][GC] == "false"


def through_the_server(catalog: RestCatalog, shop: tl.Lakehouse) -> Catalog:
    return catalog


def in_this_process(catalog: RestCatalog, shop: tl.Lakehouse) -> Catalog:
    return load(shop)


@pytest.mark.parametrize("door", [through_the_server, in_this_process])
def test_clients_cannot_enable_gc(
    catalog: RestCatalog, shop: tl.Lakehouse, door: Callable[[RestCatalog, tl.Lakehouse], Catalog]
) -> None:
    one = door(catalog, shop)
    schema = one.load_table("shop.orders").schema()
    refusals = (BadRequestError, tl.InvalidArgument)
    with pytest.raises(refusals, match="only the lakehouse deletes files"):
        one.create_table("shop.fresh", schema, properties={GC: "true"})
    table = one.load_table("shop.orders")
    with pytest.raises(refusals, match="only the lakehouse deletes files"), table.transaction() as change:
        change.set_properties({GC: "true"})
    with pytest.raises(refusals, match="only the lakehouse deletes files"), table.transaction() as change:
        change.remove_properties(GC)
    with table.transaction() as change:  # setting the present value is allowed
        change.set_properties({GC: "false", "color": "red"})
    assert one.load_table("shop.orders").properties == {GC: "false", "color": "red"} | {
        name: value for name, value in table.properties.items() if name not in (GC, "color")
    }
    assert stored(shop)["properties"][GC] == "false"
    one.create_table("shop.fresh", schema)
    assert stored(shop, "shop.fresh")["properties"][GC] == "false"


def test_a_creation_by_updates_disables_gc(http_client: Client, shop: tl.Lakehouse) -> None:
    staged = http_client(
        "POST", "/v1/namespaces/shop/tables", {"name": "fresh", "schema": COLUMNS, "stage-create": True}
    )
    assert staged.body["metadata"]["properties"][GC] == "false"
    metadata = staged.body["metadata"]
    updates: list[dict[str, Any]] = [
        *new_table(metadata["table-uuid"]),
        {"action": "set-location", "location": metadata["location"]},
    ]
    commit = {"requirements": [{"type": "assert-create"}], "updates": updates}
    answer = http_client("POST", "/v1/namespaces/shop/tables/fresh", commit)
    assert answer.code == 200, answer
    assert answer.body["metadata"]["properties"][GC] == "false"
    assert stored(shop, "shop.fresh")["properties"][GC] == "false"
    commit["updates"] = [*updates, {"action": "set-properties", "updates": {GC: "true"}}]
    assert http_client("POST", "/v1/namespaces/shop/tables/other", commit).code == 400


def test_a_purge_drops_the_name_and_deletes_no_file(catalog: RestCatalog, shop: tl.Lakehouse) -> None:
    before, version = all_files(shop), shop.version
    catalog.purge_table("shop.orders")
    assert not shop.exists("shop.orders")
    shop.create_table("shop.again", ROWS).append(ROWS)
    load(shop).purge_table("shop.again")
    assert before <= all_files(shop)
    assert shop.at(version).table("shop.orders").scan().to_arrow().equals(pa.table(ROWS))
