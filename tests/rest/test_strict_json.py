"""Bodies are JSON that all languages can read, which is stricter than Python's parser.

The number 1e999 in a report made the list of reports invalid JSON; half a surrogate pair in a property was a 500; and a
snapshot with sequence number 2^70 made a table unreadable for engines with 64-bit integers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client

SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": false}]}'
TABLE = "/v1/namespaces/n/tables/t"


@pytest.fixture
def client(http_client: Client, lake: tl.Lakehouse) -> Client:
    """Of a server with the table `n.t`."""
    with lake.transaction() as txn:
        txn.create_namespace("n")
        txn.create_table("n.t", {"a": "bigint"})
    return http_client


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", str(2**63), "9" * 5000])
def test_integers_out_of_range_are_refused(client: Client, number: str) -> None:
    assert client("POST", f"{TABLE}/metrics", f'{{"report-type": "x", "v": {number}}}'.encode()).code == 400
    assert client("GET", "/trinitylake/v1/metrics").body == {"reports": []}


@pytest.mark.parametrize("number", [0, -(2**63), 2**63 - 1, 1.5, -1e300])
def test_other_numbers_are_kept(client: Client, number: Any) -> None:
    assert client("POST", f"{TABLE}/metrics", {"report-type": "x", "v": number}).code == 204
    [kept] = client("GET", "/trinitylake/v1/metrics").body["reports"]
    assert kept["report"]["v"] == number


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "a\\udc00\\ud800"])
def test_half_of_a_character_is_the_fault_of_the_client(client: Client, lake: tl.Lakehouse, half: str) -> None:
    change = f'{{"updates": [{{"action": "set-properties", "updates": {{"q": "{half}"}}}}]}}'
    creation = f'{{"name": "u", "schema": {SCHEMA}, "properties": {{"{half}": "x"}}}}'
    report = f'{{"report-type": "{half}"}}'
    before = lake.version
    for path, body in ((TABLE, change), ("/v1/namespaces/n/tables", creation), (f"{TABLE}/metrics", report)):
        assert client("POST", path, body.encode()).code == 400
    assert lake.version == before


def test_both_halves_are_a_character(client: Client) -> None:
    change = {"updates": [{"action": "set-properties", "updates": {"q": "\U0001f600"}}]}
    assert "\\ud83d\\ude00" in json.dumps(change)
    assert client("POST", TABLE, change).body["metadata"]["properties"]["q"] == "\U0001f600"


def test_a_snapshot_has_a_number_of_64_bits(client: Client, lake: tl.Lakehouse) -> None:
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 2**70,
        "timestamp-ms": 1,
        "manifest-list": f"{lake.table('n.t').location}/metadata/s.avro",
        "summary": {"operation": "append"},
    }
    before = lake.version
    assert client("POST", TABLE, {"updates": [{"action": "add-snapshot", "snapshot": snapshot}]}).code == 400
    assert lake.version == before
