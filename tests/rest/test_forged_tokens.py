"""A token of a plan has the limits of a body.

A token is the request of the plan in base64, so that any server can continue it. A forged token of 16 MB with six
million values occupied a thread for twelve seconds and memory outside of all limits. Invalid values were 500.
"""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import with_tables
from trinitylake.rest.request.body import MAX_VALUES

TASKS = "/v1/namespaces/shop/tables/orders/tasks"


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """The table `shop.orders`."""
    return with_tables(lake, "shop.orders")


def token(values: str) -> str:
    """A token that nobody gave, for the rows whose id is one of these values."""
    text = f'{{"request":{{"filter":{{"type":"in","term":"id","values":[{values}]}}}},"start":0,"plan":"x"}}'
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_token_has_no_more_values_than_a_body(http_client: Client, shop: tl.Lakehouse) -> None:
    body = json.dumps({"plan-task": token(",".join(map(str, range(2 * MAX_VALUES))))}).encode()
    tracemalloc.start()
    try:
        answer = http_client("POST", TASKS, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.code, answer.error) == (404, "NoSuchPlanTaskException")
    assert most < 10 * len(body)


@pytest.mark.parametrize(
    "values", ["[]", "[" * 5000, "{}", "1e999", "99999999999999999999", '"\\ud800"', "NaN", "null", '1, "a"']
)
def test_a_token_that_makes_no_sense_is_none(http_client: Client, shop: tl.Lakehouse, values: str) -> None:
    answer = http_client("POST", TASKS, {"plan-task": token(values)})
    assert answer.code in (400, 404), answer


def test_a_token_that_says_what_one_of_a_plan_would_is_one(http_client: Client, shop: tl.Lakehouse) -> None:
    answer = http_client("POST", TASKS, {"plan-task": token("1, 2, 3")})
    assert answer.code == 200
    found: list[Any] = answer.body["file-scan-tasks"]
    assert len(found) == 1
    assert len(http_client("POST", TASKS, {"plan-task": token(",".join(map(str, range(15_000))))}).body) == 3
