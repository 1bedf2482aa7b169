"""Idempotency keys and transaction ids: expiry, ownership, restart, and saved transactions.

- After the first `lake.maintenance.expire()` each write with an `Idempotency-Key` was a `CommitStateUnknownException`,
  because an unused id is "unknown" once versions have expired. Iceberg's Java client sends keys with every write.
- A transaction id that one principal had used was answered to another principal, whose writes vanished with 200.
- A resumed saved transaction stayed in memory while other processes changed it, and one writer could occupy all slots.
- A writer began a transaction with the id that an `Idempotency-Key` becomes, and committed it: the first request with
  that key was then answered as a repeated one, and its write was lost.
- Up to 250 transactions of one writer, each begun with 12 MB of properties, stayed in memory.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from trinitylake import core
from trinitylake.rest import RestServer, ServerOptions
from trinitylake.rest.handlers.transactions import MAX_BEGIN_SIZE_BYTES
from waiting import wait_until

WANDA = "the-token-of-wanda-0123456789"


NOBODY = "the-token-of-nobody-0123456789"


PATH = "/v1/namespaces/shop/tables/orders"


OPEN = "/trinitylake/v1/transactions"


#: In milliseconds.
DAY = 24 * 60 * 60 * 1000


def setting(color: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": color}}]}


def key_of(millis: float) -> str:
    """A UUID of version 7 as in Iceberg's clients: the time, followed by random bits."""
    number = int(millis) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=number))


def now() -> float:
    return time.time() * 1000


def date_root(lake: tl.Lakehouse, version: int, millis: float) -> None:
    """Set the time that the store reports for the root of a version. The time of the writer's clock in the root
    stays."""
    path = Path(lake._storage.root.removeprefix("file://")) / core.root_path(version)
    os.utime(path, ns=(0, int(millis) * 1_000_000))


def send(client: Client, key: str, color: str = "red", token: str | None = None) -> Answer:
    return client("POST", PATH, setting(color), headers={"Idempotency-Key": key}, token=token)


@pytest.fixture
def writers(tokens: Path) -> Path:
    """Adds two principals: a second writer of the shop, and one without a grant on the shop."""
    tokens.write_text(tokens.read_text() + f"{WANDA} wanda writer:shop.*\n{NOBODY} nobody reader:nothing\n")
    return tokens


@pytest.fixture
def shared(shop: tl.Lakehouse, writers: Path) -> Iterator[RestServer]:
    with running(shop, token_file=writers) as server:
        yield server


@pytest.mark.parametrize("new_key", [lambda: key_of(now()), lambda: str(uuid.uuid4())])
def test_keys_work_after_versions_have_expired(http_client: Client, shop: tl.Lakehouse, new_key: Any) -> None:
    assert send(http_client, new_key(), "red").code == 200
    date_root(shop, shop.version, now() - 2000)  # the key is younger than the expired versions by more than a second
    assert shop.maintenance.expire(before=shop.version)
    for color in ("green", "blue"):
        key, before = new_key(), shop.version
        first = send(http_client, key, color)
        assert first.code == 200, first
        assert send(http_client, key, color).body == first.body
        assert shop.version == before + 1
        assert shop.table("shop.orders").properties["color"] == color


def test_a_key_older_than_all_versions_has_an_unknown_outcome(http_client: Client, shop: tl.Lakehouse) -> None:
    """Keys are found in the log, so after an early expiry the outcome of a key is unknown."""
    key = key_of(now())
    time.sleep(0.002)
    assert send(http_client, key, "red").code == 200
    assert send(http_client, key_of(now()), "green").code == 200
    shop.maintenance.expire(before=shop.version)
    before = shop.version
    answer = send(http_client, key, "red")
    assert (answer.code, answer.error) == (500, "CommitStateUnknownException")
    assert shop.version == before
    assert shop.table("shop.orders").properties["color"] == "green"


def test_version_dated_in_the_future_does_not_expire_new_keys(http_client: Client, shop: tl.Lakehouse) -> None:
    """A version whose writer's clock is days ahead does not make new idempotency keys count as expired. Otherwise,
    after the expiry of older versions, the server would answer 500 for every new key until that date."""
    assert send(http_client, key_of(now()), "red").code == 200
    date_root(shop, shop.version, now() - 8 * DAY)
    shop.maintenance.expire(before=shop.version)
    key, before = key_of(now() - 8 * DAY + 60_000), shop.version
    first = send(http_client, key, "green")
    assert first.code == 200, first
    assert send(http_client, key, "green").body == first.body
    assert shop.version == before + 1


def test_a_late_clock_of_a_client_makes_no_old_key_new(http_client: Client, shop: tl.Lakehouse) -> None:
    """A writer whose clock is days behind does not make an old idempotency key count as new. Otherwise a request that
    was committed in an expired version would be committed again."""
    key = key_of(now() + 7 * DAY)
    assert send(http_client, key, "red").code == 200
    assert send(http_client, key_of(now() + 7 * DAY + 60_000), "green").code == 200
    date_root(shop, shop.version, now() + 8 * DAY)
    shop.maintenance.expire(before=shop.version)
    before = shop.version
    answer = send(http_client, key, "red")
    assert (answer.code, answer.error) == (500, "CommitStateUnknownException")
    assert shop.version == before
    assert shop.table("shop.orders").properties["color"] == "green"


def test_a_store_with_times_in_seconds_makes_no_old_key_new(http_client: Client, shop: tl.Lakehouse) -> None:
    """A store that truncates times to seconds does not make an old idempotency key count as new. By truncated times, an
    expired version of the same second would seem older than the key."""
    second = int(now()) // 1000 * 1000
    key = key_of(second + 500)
    assert send(http_client, key, "red").code == 200
    assert send(http_client, key_of(second + 600), "green").code == 200
    date_root(shop, shop.version, second)
    shop.maintenance.expire(before=shop.version)
    assert send(http_client, key, "red").error == "CommitStateUnknownException"
    assert send(http_client, key_of(second + 1000), "blue").code == 200


def test_a_new_key_reads_no_log(http_client: Client, shop: tl.Lakehouse) -> None:
    """A new idempotency key is recognised as new without reading the kept versions, so its cost does not grow with
    their number."""

    for number in range(60):
        shop.create_namespace(f"n{number}")
    fresh = tl.open(shop.uri, durability="none")
    with running(fresh) as server:
        Client(server)("GET", PATH)
        before = fresh._storage.counters()
        assert send(Client(server), key_of(now())).code == 200
        after = fresh._storage.counters()
    requests = {name: after[name] - before[name] for name in after if "bytes" not in name}
    assert sum(requests.values()) < 45, requests


def begin(client: Client, id: str, token: str) -> Answer:
    return client("POST", OPEN, {"id": id}, token=token)


def write(client: Client, id: str, color: str, token: str) -> Answer:
    return client("POST", f"/v1/txn~{id}/namespaces/shop/tables/orders", setting(color), token=token)


def commit(client: Client, id: str, token: str) -> Answer:
    return client("POST", f"{OPEN}/{id}/commit", {}, token=token)


def test_an_id_belongs_to_the_first_principal_that_used_it(shared: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(shared)
    assert begin(client, "nightly", WALT).code == 201
    assert begin(client, "nightly", WANDA).code == 409  # open
    assert write(client, "nightly", "red", WALT).code == 200
    version = commit(client, "nightly", WALT).body["version"]
    for token in (WANDA, ROOT):
        refused = begin(client, "nightly", token)  # committed
        assert (refused.code, refused.error) == (409, "AlreadyExistsException")
        assert commit(client, "nightly", token).code in (403, 200)
    assert commit(client, "nightly", WANDA).code == 403
    # The principal that committed a transaction may begin it again, because a job may not know that it was committed.
    assert begin(client, "nightly", WALT).code == 201
    assert write(client, "nightly", "green", WALT).code == 200
    assert commit(client, "nightly", WALT).body["version"] == version
    assert shop.table("shop.orders").properties["color"] == "red"


def test_a_second_server_does_not_return_the_commit_of_another_principal(
    shared: RestServer, shop: tl.Lakehouse, writers: Path
) -> None:
    with running(tl.open(shop.uri, durability="none"), token_file=writers) as other:
        here, there = Client(shared), Client(other)
        assert begin(here, "nightly", WALT).code == 201
        assert begin(there, "nightly", WANDA).code == 201  # the outcome is not known yet
        assert write(here, "nightly", "red", WALT).code == 200
        assert write(there, "nightly", "green", WANDA).code == 200
        assert commit(here, "nightly", WALT).code == 200
        lost = commit(there, "nightly", WANDA)
        assert (lost.code, lost.error) == (409, "AlreadyExistsException")
    assert shop.table("shop.orders").properties["color"] == "red"


def test_the_id_of_a_saved_transaction_cannot_be_begun(shared: RestServer, shop: tl.Lakehouse) -> None:
    txn = shop.begin(id="saved")
    txn.create_namespace("new")
    txn.save()
    assert begin(Client(shared), "saved", WANDA).code == 409
    assert [one.id for one in shop.transactions.list()] == ["saved"]


def test_a_saved_transaction_is_read_from_storage(shared: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(shared)
    txn = shop.begin(id="handed")
    txn.create_namespace("one")
    txn.save()
    assert client("GET", "/v1/txn~handed/namespaces", token=ROOT).body["namespaces"] == [["one"], ["shop"]]
    elsewhere = shop.resume("handed")  # another process continues the transaction
    elsewhere.create_namespace("two")
    elsewhere.save()
    assert client("GET", "/v1/txn~handed/namespaces", token=ROOT).body["namespaces"] == [["one"], ["shop"], ["two"]]
    made = client("POST", "/v1/txn~handed/namespaces", {"namespace": ["three"]}, token=ROOT)
    assert made.code == 200, made
    final = shop.resume("handed")  # the process sees the writes through the server
    assert final.namespaces() == ["one", "shop", "three", "two"]
    final.commit()
    assert client("GET", "/v1/txn~handed/namespaces", token=ROOT).code in (404, 410)
    assert shop.namespaces() == ["one", "shop", "three", "two"]


def test_describing_saved_transactions_takes_no_memory(shared: RestServer, shop: tl.Lakehouse) -> None:
    for number in range(5):
        txn = shop.begin(id=f"saved-{number}", properties={"rest.principal": "rita"})
        txn.create_namespace(f"n{number}")
        txn.save()
    client = Client(shared)
    for number in range(5):
        for token, code in ((NOBODY, 403), (RITA, 200), (ROOT, 200)):
            assert client("GET", f"/v1/config?warehouse=@txn/saved-{number}", token=token).code == code
        assert client("GET", f"/v1/txn~saved-{number}/namespaces", token=RITA).code == 200
    assert shared.transactions.memory.count == 0


def test_one_principal_cannot_occupy_all_open_transactions(shop: tl.Lakehouse, writers: Path) -> None:
    options = ServerOptions(max_open_transactions=10, max_open_transactions_per_principal=4)
    with running(shop, token_file=writers, options=options) as server:
        client = Client(server)
        codes = [begin(client, f"walt-{number}", WALT).code for number in range(12)]
        assert codes == [201] * 4 + [429] * 8
        assert begin(client, "wanda-1", WANDA).code == 201
        assert client("POST", f"{OPEN}/walt-0/rollback", {}, token=WALT).code == 204
        assert begin(client, "walt-again", WALT).code == 201


def test_an_idle_transaction_is_saved(shop: tl.Lakehouse, writers: Path) -> None:
    options = ServerOptions(max_open_transactions=2, transaction_idle_seconds=0.2)
    with running(shop, token_file=writers, options=options) as server:
        client = Client(server)
        assert begin(client, "idle", WALT).code == 201
        assert write(client, "idle", "red", WALT).code == 200
        wait_until(shop.transactions.list)
        assert [one.id for one in shop.transactions.list()] == ["idle"]
        assert server.transactions.memory.count == 0
        table = client("GET", "/v1/txn~idle/namespaces/shop/tables/orders", token=WALT)
        assert table.body["metadata"]["properties"]["color"] == "red"
        assert commit(client, "idle", WALT).code == 200
    assert shop.table("shop.orders").properties["color"] == "red"


def test_a_large_request_to_begin_a_transaction_is_refused(http_client: Client) -> None:
    large = {"k": "x" * MAX_BEGIN_SIZE_BYTES}
    assert http_client("POST", OPEN, {"properties": large}).code == 413
    in_sql = {"namespace": ["sys", "transactions", "nightly"], "properties": large}
    assert http_client("POST", "/v1/namespaces", in_sql).code == 413
    assert http_client("GET", OPEN).body == {"open": [], "saved": []}
    assert http_client("POST", OPEN, {"properties": {"k": "x" * 1000}}).code == 201


@pytest.mark.parametrize("who", ["walt", "somebody else"])
def test_the_id_of_an_idempotent_request_is_reserved(http_client: Client, lake: tl.Lakehouse, who: str) -> None:
    key = "0f8fad5b-d9cb-469f-a165-70867728950e"
    digest = hashlib.sha256("\0".join((who, key)).encode()).hexdigest()
    id = f"rest-{digest[:40]}"
    assert http_client("POST", OPEN, {"id": id}).code == 400
    assert http_client("POST", "/v1/namespaces", {"namespace": ["sys", "transactions", id]}).code == 400
    assert lake.transactions.list() == []


def test_ids_in_the_form_of_the_library_are_reserved(http_client: Client, lake: tl.Lakehouse) -> None:
    """A client cannot begin a transaction with an id in the form of generated ids. Otherwise it could take over the id
    of another commit, and with it the outcome of that commit."""
    with lake.transaction() as txn:
        txn.create_namespace("shop")
    assert http_client("POST", OPEN, {"id": txn.id}).code == 400
    assert http_client("POST", "/v1/namespaces", {"namespace": ["sys", "transactions", txn.id]}).code == 400
    assert lake.transactions.outcome(txn.id).version == 1
    assert http_client("POST", OPEN, {"id": txn.id.replace("-", "")}).code == 201


TRANSACTIONS = "/trinitylake/v1/transactions"


def begin_again(client: Client, restart: bool = True) -> int:
    return client("POST", TRANSACTIONS, {"id": "job", "restart": restart}).code


def create(client: Client, namespace: str) -> int:
    return client("POST", "/v1/txn~job/namespaces", {"namespace": [namespace], "properties": {}}).code


def commit_job(client: Client) -> int:
    return int(client("POST", f"{TRANSACTIONS}/job/commit").body["version"])


@pytest.mark.parametrize("end", ["open", "rolled back", "saved and rolled back"])
def test_an_attempt_that_was_not_committed_is_discarded(http_client: Client, lake: tl.Lakehouse, end: str) -> None:
    if end == "saved and rolled back":
        saved = lake.begin(id="job")
        saved.create_namespace("old")
        saved.save()
        saved.rollback()
    else:
        assert begin_again(http_client, restart=False) == 201
        assert create(http_client, "old") == 200
    if end == "rolled back":
        http_client("POST", f"{TRANSACTIONS}/job/rollback")
    assert begin_again(http_client) == 201
    assert create(http_client, "new") == 200
    version = commit_job(http_client)
    assert lake.namespaces() == ["new"]
    assert begin_again(http_client) == 201  # its commit returns the version of the id
    assert commit_job(http_client) == version


def test_attempt_of_another_principal_is_not_discarded(http_client: Client, lake: tl.Lakehouse) -> None:
    saved = lake.begin(id="job")
    saved.create_namespace("old")
    saved.save()
    assert begin_again(http_client) == 409
    saved.commit()
    assert lake.namespaces() == ["old"]
