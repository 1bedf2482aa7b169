"""Page tokens and positions reveal nothing about hidden objects.

The token of a search was the last key read, in base64, which could be a hidden name. Positions in a difference of two
versions counted hidden rows.
"""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import RITA
from rest.shop import with_tables
from trinitylake.rest.page import search
from trinitylake.rest.page.search import decrypted, encrypted

pytestmark = pytest.mark.usefixtures("reused_workers")
PAGE = "/trinitylake/v1/page"


@pytest.fixture
def lakehouse(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Three tables. Rita can read only `shop.orders`, which is the last one in key order."""
    return with_tables(lake, "finance.layoffs", "finance.plans", "shop.orders")


def test_a_token_of_a_search_reveals_no_hidden_name(
    lakehouse: tl.Lakehouse, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_LOOKED_AT", 1)
    monkeypatch.setattr("trinitylake.rest.catalog.listing.MAX_KEYS_AT_ONCE", 1)
    found, token, pages = [], "", 0
    with running(lakehouse, token_file=tokens) as server:
        client = Client(server)
        while token is not None:
            more = f"&next={token}" if token else ""
            body = client("GET", f"{PAGE}/latest/search?text=o{more}", token=RITA).body
            found += [one["name"] for one in body["found"]]
            token = body["next"]
            pages += 1
            text = base64.urlsafe_b64decode(token).decode("latin-1") if token else ""
            assert not any(name in text for name in ("finance", "layoffs", "plans"))
        assert client("GET", f"{PAGE}/latest/search?text=o&next=eHh4", token=RITA).code == 400
    assert ["shop", "orders"] in found
    assert pages > 3
    assert not any("finance" in name for name in found)


def test_encrypted_positions_have_one_length() -> None:
    positions = ["", "B", "C" * 900, "ü "]
    assert len({len(encrypted(one)) for one in positions}) == 1
    assert [decrypted(encrypted(one)) for one in positions] == positions


def test_positions_in_a_difference_count_visible_objects(lakehouse: tl.Lakehouse, tokens: Path) -> None:
    with running(lakehouse, token_file=tokens) as server:
        client = Client(server)

        def seen(start: int) -> list[list[str]]:
            body = client("GET", f"{PAGE}/diff?from=0&to=1&start={start}", token=RITA).body
            assert body["next"] is None
            return [one["name"] for one in body["changes"]]

        assert seen(0) == [["shop"], ["shop", "orders"]]
        assert [len(seen(start)) for start in range(1, 4)] == [1, 0, 0]
