"""The warehouse selects the state of the lakehouse: latest version, past version, or open transaction."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import RESTError

import trinitylake as tl
from rest.client import Client, connect, running
from rest.shop import ROWS, with_tables
from trinitylake.core import root_path
from trinitylake.definitions import LakehouseDef
from trinitylake.lakehouse.transaction import TransactionStatus
from trinitylake.rest import RestServer

MORE = pa.table({"id": pa.array([4], pa.int64())})


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Version 1 has two tables with three rows each. Version 2 adds a row to the first table."""
    with_tables(lake, "shop.orders", "shop.totals")
    lake.table("shop.orders").append(MORE)
    return lake


def rows(server: RestServer, warehouse: str, table: str = "shop.orders") -> int:
    """The number of rows that a client of the warehouse sees."""
    return int(connect(server, warehouse).load_table(table).scan().to_arrow().num_rows)


def test_a_past_version_is_readable_and_not_writable(server: RestServer, shop: tl.Lakehouse) -> None:
    moment = shop.at(1).created_at
    assert rows(server, "@latest") == 4
    assert rows(server, "@version/1") == 3
    assert rows(server, f"@timestamp/{moment.isoformat()}") == 3
    past = connect(server, "@version/1")
    # PyIceberg's client reads the configuration, and does not send requests to endpoints that it lacks.
    with pytest.raises(NotImplementedError):
        past.drop_table("shop.orders")
    client = Client(server)
    for method, path, body in [
        ("DELETE", "/v1/version~1/namespaces/shop/tables/orders", None),
        ("POST", "/v1/version~1/namespaces", {"namespace": ["new"]}),
        ("POST", "/v1/version~1/transactions/commit", {"table-changes": []}),
    ]:
        refused = client(method, path, body)
        assert (refused.code, refused.error) == (403, "ForbiddenException")
    endpoints = client("GET", "/v1/config?warehouse=@version/1").body["endpoints"]
    assert "GET /v1/{prefix}/namespaces" in endpoints
    assert "POST /v1/{prefix}/namespaces" not in endpoints
    assert shop.version == 2


def test_an_unknown_warehouse_is_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    for warehouse, code in {
        "@version/99": 404,
        "@version/-1": 400,
        "@version/9999999999999999999999": 404,
        "@timestamp/1990-01-01T00:00:00": 404,
        "@timestamp/yesterday": 400,
        "@txn/none": 404,
        "@else/where": 404,
    }.items():
        assert http_client("GET", f"/v1/config?warehouse={warehouse}").code == code, warehouse
    assert http_client("GET", "/v1/version~99/namespaces").code == 404
    assert http_client("GET", "/v1/txn~none/namespaces").code == 404


def test_a_tag_selects_its_version(server: RestServer, http_client: Client, shop: tl.Lakehouse) -> None:
    assert http_client("GET", "/v1/config?warehouse=@tag/q3").error == "NotFoundException"
    with shop.transaction() as txn:
        definition = LakehouseDef()
        definition.CopyFrom(shop._definition)
        definition.exported_snapshots["q3"] = root_path(1)
        definition.exported_snapshots["lost"] = root_path(99)
        txn._state().set_lakehouse_definition(definition.SerializeToString())
    assert (rows(server, "@tag/q3"), rows(server, "@latest")) == (3, 4)
    assert http_client("GET", "/v1/config?warehouse=@tag/q3").body["overrides"] == {"prefix": "tag~q3"}
    for name in ("q4", "lost", "", "q3/", "../q3"):
        assert http_client("GET", f"/v1/config?warehouse=@tag/{name}").code == 404, name
    with pytest.raises(NotImplementedError):
        connect(server, "@tag/q3").drop_table("shop.orders")


def test_clients_work_together_in_one_open_transaction(
    server: RestServer, http_client: Client, shop: tl.Lakehouse
) -> None:
    begun = http_client("POST", "/trinitylake/v1/transactions", {"message": "two tables", "author": "ana"})
    assert begun.code == 201
    id, warehouse = begun.body["id"], begun.body["warehouse"]
    one, other = connect(server, warehouse), connect(server, warehouse)
    one.load_table("shop.orders").append(MORE)
    other.load_table("shop.totals").append(MORE)
    other.create_table("shop.fresh", ROWS.schema).append(ROWS)
    assert other.load_table("shop.orders").scan().to_arrow().num_rows == 5  # the rows that the first client wrote
    assert rows(server, "@latest") == 4
    assert shop.version == 2
    assert [one["id"] for one in http_client("GET", "/trinitylake/v1/transactions").body["open"]] == [id]

    committed = http_client("POST", f"/trinitylake/v1/transactions/{id}/commit")
    assert committed.body == {"id": id, "version": 3}
    assert [len(shop.table(f"shop.{name}").scan().to_arrow()) for name in ("orders", "totals", "fresh")] == [5, 4, 3]
    assert (shop.log(1)[0].message, shop.log(1)[0].author) == ("two tables", "ana")
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/commit").body == {"id": id, "version": 3}
    ended = http_client("GET", f"/v1/txn~{id}/namespaces")
    assert (ended.code, "was committed as version 3" in ended.body["error"]["message"]) == (410, True)


@pytest.mark.parametrize("id", [None, "load-1"])
def test_committing_an_undone_commit_is_a_conflict(
    server: RestServer, http_client: Client, shop: tl.Lakehouse, id: str | None
) -> None:
    id = http_client("POST", "/trinitylake/v1/transactions", {} if id is None else {"id": id}).body["id"]
    connect(server, f"@txn/{id}").load_table("shop.orders").append(MORE)
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    shop.rollback(2)
    again = http_client("POST", f"/trinitylake/v1/transactions/{id}/commit")
    assert (again.code, again.body["error"]["type"]) == (409, "CommitFailedException")
    assert "undone" in again.body["error"]["message"]
    assert shop.version == 4


def test_a_rolled_back_transaction_leaves_nothing(server: RestServer, http_client: Client, shop: tl.Lakehouse) -> None:
    id = http_client("POST", "/trinitylake/v1/transactions", {"id": "try-1"}).body["id"]
    connect(server, "@txn/try-1").load_table("shop.orders").append(MORE)
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/rollback").code == 204
    assert http_client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 404
    ended = http_client("GET", f"/trinitylake/v1/transactions/{id}")
    assert (ended.code, "was rolled back" in ended.body["error"]["message"]) == (410, True)
    assert shop.version == 2
    assert rows(server, "@latest") == 4


def test_two_table_commits_in_a_transaction_are_all_or_nothing(http_client: Client, shop: tl.Lakehouse) -> None:
    prefix = http_client("POST", "/trinitylake/v1/transactions", {}).body["prefix"]
    set_color = {"action": "set-properties", "updates": {"color": "red"}}
    good = {"identifier": {"namespace": ["shop"], "name": "orders"}, "requirements": [], "updates": [set_color]}
    stale = {"type": "assert-current-schema-id", "current-schema-id": 77}
    bad = {"identifier": {"namespace": ["shop"], "name": "totals"}, "requirements": [stale], "updates": [set_color]}
    nonsense = {**bad, "requirements": [], "updates": [{"action": "set-current-schema", "schema-id": 77}]}
    for second, code in ((bad, 409), (nonsense, 400)):
        answer = http_client("POST", f"/v1/{prefix}/transactions/commit", {"table-changes": [good, second]})
        assert answer.code == code
        assert "color" not in http_client.table(f"/v1/{prefix}/namespaces/shop/tables/orders")["properties"]
    assert http_client("POST", f"/v1/{prefix}/transactions/commit", {"table-changes": [good]}).code == 204
    assert http_client.table(f"/v1/{prefix}/namespaces/shop/tables/orders")["properties"]["color"] == "red"


def test_every_change_in_a_transaction_has_its_own_metadata_location(http_client: Client, shop: tl.Lakehouse) -> None:
    prefix = http_client("POST", "/trinitylake/v1/transactions", {}).body["prefix"]
    path = f"/v1/{prefix}/namespaces/shop/tables/orders"
    locations = [http_client("GET", path).body["metadata-location"]]
    for color in ("red", "blue"):
        change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": color}}]}
        locations.append(http_client("POST", path, change).body["metadata-location"])
        assert http_client("GET", path).body["metadata-location"] == locations[-1]
    assert len(set(locations)) == 3  # engines cache metadata by its location


def test_a_lost_commit_is_409(http_client: Client, shop: tl.Lakehouse) -> None:
    id = http_client("POST", "/trinitylake/v1/transactions", {}).body["id"]
    assert http_client("DELETE", f"/v1/txn~{id}/namespaces/shop/tables/orders").code == 204
    shop.table("shop.orders").append(MORE)
    lost = http_client("POST", f"/trinitylake/v1/transactions/{id}/commit")
    assert (lost.code, lost.error) == (409, "CommitFailedException")


def test_an_unknown_outcome_is_500_and_never_409(
    http_client: Client, shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: tl.Transaction) -> int:
        self._open_core.status = TransactionStatus.UNKNOWN
        raise tl.StorageError("the connection broke")

    monkeypatch.setattr(tl.Transaction, "commit", fails)
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}
    answer = http_client("POST", "/v1/namespaces/shop/tables/orders", change)
    assert (answer.code, answer.error) == (500, "CommitStateUnknownException")
    id = http_client("POST", "/trinitylake/v1/transactions", {}).body["id"]
    answer = http_client("POST", f"/trinitylake/v1/transactions/{id}/commit")
    assert (answer.code, answer.error) == (500, "CommitStateUnknownException")


def test_a_transaction_of_this_process_is_opened_to_clients(server: RestServer, shop: tl.Lakehouse) -> None:
    transaction = shop.begin()
    transaction.table("shop.orders").append(MORE)
    warehouse = server.transactions.add(transaction)
    catalog = connect(server, warehouse)
    assert catalog.load_table("shop.orders").scan().to_arrow().num_rows == 5
    catalog.load_table("shop.orders").append(MORE)
    assert transaction.table("shop.orders").scan().to_arrow().num_rows == 6
    assert transaction.commit() == 3
    with pytest.raises(RESTError):
        catalog.load_table("shop.orders")


def test_a_transaction_outlives_its_server(shop: tl.Lakehouse) -> None:
    with running(shop) as first:
        id = Client(first)("POST", "/trinitylake/v1/transactions", {"id": "nightly"}).body["id"]
        connect(first, "@txn/nightly").load_table("shop.orders").append(MORE)
    with running(shop) as second:
        listed = Client(second)("GET", "/trinitylake/v1/transactions").body
        assert [one["id"] for one in listed["saved"]] == ["nightly"]
        assert rows(second, "@txn/nightly") == 5
        assert Client(second)("POST", f"/trinitylake/v1/transactions/{id}/commit").body["version"] == 3
    assert shop.table("shop.orders").scan().to_arrow().num_rows == 5


def test_latest_commits_lists_each_version_once_in_order(server: RestServer, shop: tl.Lakehouse) -> None:
    """The list of the latest commits has each version once, in order: with commits on paths without a prefix, and
    without repeated requests and commits of transactions through SQL. Users with an open transaction are warned of
    these commits."""
    client, before = Client(server), shop.version
    key = {"Idempotency-Key": "6f4cdd3c-6f4c-4f4c-8f4c-6f4cdd3c6f4c"}
    assert client("POST", "/v1/latest/namespaces", {"namespace": ["a"]}, headers=key).code == 200
    assert client("POST", "/v1/namespaces", {"namespace": ["b"]}).code == 200
    assert client("POST", "/v1/latest/namespaces", {"namespace": ["a"]}, headers=key).code == 200, "it was committed"
    id = server.transactions.begin().id
    assert client("POST", f"/v1/txn~{id}/namespaces", {"namespace": ["c"]}).code == 200
    assert client("POST", f"/trinitylake/v1/transactions/{id}/commit").code == 200
    for path in ("/v1/namespaces", "/v1/latest/namespaces"):
        name = ["sys", "transactions", f"of{path.count('/')}"]
        assert client("POST", path, {"namespace": name}).code == 200
        inside = f"/v1/txn~{name[-1]}/namespaces"
        assert client("POST", inside, {"namespace": name[-1:]}).code == 200
        assert client("POST", f"{path}/{'%1F'.join(name)}/properties", {"updates": {"commit": "true"}}).code == 200
    assert shop.version == before + 5
    assert server.latest_commits == [before + 1, before + 2]
