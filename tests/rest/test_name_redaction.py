"""Error messages contain no names that the principal cannot see.

A writer of one table began a serializable transaction, listed all visible objects, and committed. The conflict
contained the names of new tables and namespaces, and the messages of other transactions. The refusal to drop a
namespace named a hidden table in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.shop import ROWS, with_tables
from trinitylake.errors import CommitConflict, NamespaceNotEmpty, Winner
from trinitylake.rest.errors import bad_request, response_of
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.security.name_redaction import message_for

WRITER, ADMIN, ROOT = (f"the-token-of-{who}-0123456789" for who in ("writer", "admin", "root"))
CONFLICT = CommitConflict(
    "conflict on namespace HIDDEN, table shop.orders with version 7 by HIDDEN (HIDDEN): transaction 1 is lost",
    keys=["namespace HIDDEN", "table shop.orders", "view shop.HIDDEN", "transaction HIDDEN", "earlier version"],
    winners=[Winner(7, "HIDDEN", "HIDDEN", "HIDDEN")],
)


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Two tables. The writer and the admin cannot see one of them."""
    return with_tables(lake, "shop.orders", "shop.HIDDEN")


@pytest.fixture
def client(shop: tl.Lakehouse, tmp_path: Path) -> Iterator[Client]:
    file = tmp_path / "tokens"
    file.write_text(f"{WRITER} walt writer:shop.orders\n{ADMIN} ada admin:shop\n{ROOT} root admin:*\n")
    file.chmod(0o600)
    with running(shop, token_file=file) as server:
        yield Client(server)


def lost(client: Client, shop: tl.Lakehouse, token: str, meanwhile: Callable[[tl.Transaction], object]) -> str:
    """The error message of a principal that listed everything visible, when it commits after another transaction."""
    begun = client("POST", "/trinitylake/v1/transactions", {"isolation": "serializable"}, token=token)
    assert begun.code == 201, begun
    path = f"/v1/{begun.body['prefix']}/namespaces"
    for asked in (path, f"{path}/shop/tables", f"{path}/shop/views"):
        assert client("GET", asked, token=token).code == 200
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"color": "red"}}]}
    assert client("POST", f"{path}/shop/tables/orders", change, token=token).code == 200
    with shop.transaction(message="MESSAGE-HIDDEN", author="AUTHOR-HIDDEN") as txn:
        meanwhile(txn)
    answer = client("POST", f"/trinitylake/v1/transactions/{begun.body['id']}/commit", token=token)
    return refused(answer)


def refused(answer: Answer) -> str:
    assert answer.code == 409, answer
    return str(answer.body["error"]["message"])


@pytest.mark.parametrize(
    ("meanwhile", "seen"),
    [
        (lambda txn: txn.create_namespace("HIDDENNAMESPACE"), []),
        (lambda txn: txn.create_table("shop.HIDDENTABLE", ROWS), []),
        (lambda txn: txn.create_view("shop.HIDDENVIEW", "SELECT 1"), []),
        (lambda txn: (txn.drop_table("shop.orders"), txn.drop_table("shop.HIDDEN")), ["shop.orders"]),
    ],
    ids=["a namespace", "a table", "a view", "two tables"],
)
def test_a_conflict_names_visible_objects_only(
    client: Client, shop: tl.Lakehouse, meanwhile: Callable[[tl.Transaction], object], seen: list[str]
) -> None:
    message = lost(client, shop, WRITER, meanwhile)
    assert "HIDDEN" not in message
    assert f"with version {shop.version}" in message
    assert all(name in message for name in seen)


def test_a_reader_of_everything_gets_the_whole_message(client: Client, shop: tl.Lakehouse) -> None:
    message = lost(client, shop, ROOT, lambda txn: txn.create_table("shop.HIDDENTABLE", ROWS))
    assert "shop.HIDDENTABLE" in message
    assert "MESSAGE-HIDDEN" in message


def test_a_namespace_that_is_not_empty_reveals_no_names(client: Client, shop: tl.Lakehouse) -> None:
    shop.drop_table("shop.orders")
    message = refused(client("DELETE", "/v1/namespaces/shop", token=ADMIN))
    assert "HIDDEN" not in message
    assert "not empty" in message
    assert "shop.HIDDEN" in refused(client("DELETE", "/v1/namespaces/shop", token=ROOT))


def wrapped(outer: Exception, inner: Exception) -> Exception:
    """Link two errors, like `raise outer from inner`."""
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    "error",
    [
        CONFLICT,
        wrapped(CommitFailedException(str(CONFLICT)), CONFLICT),
        wrapped(bad_request(f"this makes no sense: {CONFLICT}"), wrapped(CommitFailedException("x"), CONFLICT)),
        NamespaceNotEmpty("namespace shop is not empty: it has table shop.HIDDEN"),
    ],
    ids=["itself", "as PyIceberg's", "twice", "a namespace"],
)
def test_no_error_contains_hidden_names(error: Exception) -> None:
    answer = response_of(error, message_for(Principal.of("walt", ["writer:shop.orders"])))
    assert b"HIDDEN" not in bytes(answer.body)


@pytest.mark.parametrize(
    ("key", "grants", "there", "is_shown"),
    [
        ("table shop.x.y", ["reader:shop.x.*"], [("shop.x", "y")], True),
        ("table shop.x.y", ["reader:shop.x.*"], [("shop", "x.y")], False),
        ("table shop.x.y", ["reader:shop.x.*"], [("shop", "x.y"), ("shop.x", "y")], False),
        ("table shop.x.y", ["reader:shop.x.*"], [], False),
        ("table shop.x.y", ["reader:shop.*"], [], True),
        ("view shop.x", ["reader:shop.x"], [], True),
        ("namespace shop", ["reader:shop.x"], [], True),
        ("namespace payroll", ["reader:shop.x"], [], False),
        ("transaction 1", ["reader:shop.*"], [], False),
    ],
)
def test_an_ambiguous_name_is_visible_if_all_its_meanings_are(
    key: str, grants: list[str], there: list[tuple[str, str]], is_shown: bool
) -> None:
    """The text `shop.x.y` is either table `y` in `shop.x`, or table `x.y` in `shop`."""
    shown = message_for(Principal.of("walt", grants), lambda kind, namespace, name: (namespace, name) in there)
    assert (key in shown(CommitConflict("x", keys=[key]))) == is_shown
