"""How well an Iceberg REST catalog isolates transactions: `POST /v1/{prefix}/transactions/commit`, put to the test.

    python isolation_scoreboard.py http://127.0.0.1:8181                     # any catalog; needs nothing but Python
    python isolation_scoreboard.py URL --warehouse W --token T --header 'Polaris-Realm: POLARIS' --json

Copy it together with `serialization_graph.py`. It makes a namespace with tables, which it drops again, and no data
file: rows are not what this is about. Four tests, each with clients at the same time:

- lost update: two commits to one table require the same state of it. One may succeed.
- all or nothing: a commit over two tables, of which one requirement does not hold. No table may change.
- write skew: two commits, each of which changes one table and requires that the other one is unchanged. One may succeed
  (apache/iceberg#18552).
- serializable: transactions at random over some tables, each of which requires what it read. A search for cycles tells
  whether any order explains what happened.

Columns are what is written: a transaction appends a column with its name to the schema of a table, and requires the ids
of the schemas that it saw. So a table is a list, in the order of its writers.

The exit code is 0 if nothing was found, 1 if something was, 2 if so little was committed that this says nothing, 3 if
the catalog offers no commit over several tables.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serialization_graph import Transaction, check

NOT_OFFERED = {404, 405, 406, 415, 501}


class NotOffered(Exception):
    """The catalog has no commit of several tables."""


class Catalog:
    """Client of a REST catalog, with the calls that the tests need. Threads can share it."""

    def __init__(self, url: str, warehouse: str | None, headers: Mapping[str, str]) -> None:
        self._base = f"{url.rstrip('/')}/v1"
        self._headers = {"Content-Type": "application/json", **headers}
        query = f"?warehouse={urllib.parse.quote(warehouse, safe='')}" if warehouse else ""
        _, config = self.request("GET", f"/config{query}", prefix="")
        settings = {**config.get("defaults", {}), **config.get("overrides", {})}
        prefix = settings.get("prefix", "")
        self._prefix = f"/{urllib.parse.quote(prefix, safe='')}" if prefix else ""
        self.namespace = f"isolation_{uuid.uuid4().hex[:8]}"
        self.expect("POST", "/namespaces", {"namespace": [self.namespace], "properties": {}})

    def request(
        self, method: str, path: str, body: Any = None, prefix: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and body of the response. Status 0 if the connection failed, so that the outcome is unknown."""
        address = self._base + (self._prefix if prefix is None else prefix) + path
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                return error.code, json.loads(text)
            except ValueError:
                return error.code, {"error": {"message": text[:200].decode(errors="replace")}}
        except OSError as error:
            return 0, {"error": {"message": str(error)}}

    def expect(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The body of a response that must be successful."""
        status, answer = self.request(method, path, body)
        if not 200 <= status < 300:
            raise SystemExit(f"{method} {path}: {status} {answer.get('error', answer)}")
        return answer

    def create(self, name: str) -> None:
        """Create a table with one column, which is not an element of its list."""
        field = {"id": 1, "name": "first", "type": "int", "required": False}
        schema = {"type": "struct", "schema-id": 0, "fields": [field]}
        request = {"name": name, "schema": schema, "stage-create": False}  # Nessie 0.99 requires this field
        self.expect("POST", f"/namespaces/{self.namespace}/tables", request)

    def load(self, name: str) -> State:
        """A table as it is now."""
        metadata = self.expect("GET", f"/namespaces/{self.namespace}/tables/{name}")["metadata"]
        current = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        return State(name, metadata["current-schema-id"], metadata["last-column-id"], current["fields"])

    def commit(self, changes: Sequence[Mapping[str, Any]]) -> bool | None:
        """Commit changes of several tables. Returns whether it succeeded, or None if the outcome is unknown."""
        identified = [{"identifier": {"namespace": [self.namespace], "name": one["table"]}, **one} for one in changes]
        for one in identified:
            del one["table"]
        status, answer = self.request("POST", "/transactions/commit", {"table-changes": identified})
        if status in NOT_OFFERED and "does not exist" not in str(answer):
            raise NotOffered(f"{status} {answer.get('error', answer)}")
        if status == 400:
            raise NotOffered(f"the catalog takes no such commit: {answer.get('error', answer)}")
        return True if 200 <= status < 300 else None if status in (0, 500, 502, 503, 504) else False

    def drop_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.request("DELETE", f"/namespaces/{self.namespace}/tables/{name}")
        self.request("DELETE", f"/namespaces/{self.namespace}")


class State:
    """State of a table as a client read it, and the parts of a commit that follow from it."""

    def __init__(self, table: str, schema_id: int, last_column_id: int, fields: Sequence[Mapping[str, Any]]) -> None:
        self.table = table
        self._schema_id = schema_id
        self._last_column_id = last_column_id
        self._fields = list(fields)

    @property
    def elements(self) -> list[str]:
        """The elements of the list, which is stored as the columns of the table."""
        return [field["name"] for field in self._fields[1:]]

    def required(self, schema_id: int | None = None) -> dict[str, Any]:
        """A change that only requires that the table is unchanged."""
        id = self._schema_id if schema_id is None else schema_id
        requirement = {"type": "assert-current-schema-id", "current-schema-id": id}
        return {"table": self.table, "requirements": [requirement], "updates": []}

    def appended(self, element: str) -> dict[str, Any]:
        """Requirement that the table is unchanged, and updates that append one element."""
        id = self._last_column_id + 1
        fields = [*self._fields, {"id": id, "name": element, "type": "int", "required": False}]
        schema = {"type": "struct", "schema-id": self._schema_id + 1, "fields": fields}
        updates = [
            {"action": "add-schema", "schema": schema, "last-column-id": id},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        return {**self.required(), "updates": updates}


def at_once(*calls: Callable[[], bool | None]) -> list[bool | None]:
    """Results of calls that start at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], bool | None]) -> bool | None:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def lost_update(catalog: Catalog, rounds: int, tables: Sequence[str]) -> int:
    """Number of rounds in which two commits that require the same table state both succeeded."""
    both = 0
    for number in range(rounds):
        state = catalog.load(tables[0])
        changes = [[state.appended(f"update_{number}_{who}")] for who in "ab"]
        both += at_once(*(lambda one=one: catalog.commit(one) for one in changes)).count(True) > 1  # type: ignore[misc]
    return both


def all_or_nothing(catalog: Catalog, rounds: int, tables: Sequence[str]) -> int:
    """Number of rounds in which a commit with one failed requirement was accepted, or changed a table."""
    wrong = 0
    for number in range(rounds):
        first, second = (catalog.load(name) for name in tables[:2])
        element = f"atomic_{number}"
        refused = {**second.appended(element), "requirements": second.required(schema_id=9999)["requirements"]}
        taken = catalog.commit([first.appended(element), refused])
        changed = any(element in catalog.load(name).elements for name in tables[:2])
        wrong += bool(taken) or changed
    return wrong


def write_skew(catalog: Catalog, rounds: int, tables: Sequence[str]) -> int:
    """Number of rounds in which two commits that each require the absence of the other both succeeded."""
    both = 0
    for number in range(rounds):
        first, second = (catalog.load(name) for name in tables[:2])
        one = [first.required(), second.appended(f"skew_{number}_a")]
        other = [second.required(), first.appended(f"skew_{number}_b")]
        both += at_once(lambda one=one: catalog.commit(one), lambda other=other: catalog.commit(other)).count(True) > 1  # type: ignore[misc]
    return both


def serializable(
    catalog: Catalog, transactions: int, tables: Sequence[str], clients: int, seed: int
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Violations in a random history by kind, and the number of transactions by outcome."""
    history: list[Transaction] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        for turn in range(transactions // clients):
            id = f"t_{number}_{turn}"
            chosen = chance.sample(list(tables), k=min(len(tables), chance.choice((2, 2, 3))))
            seen = [catalog.load(name) for name in chosen]
            written = seen[: chance.choice((1, 1, len(seen) - 1))]
            changes = [state.appended(id) if state in written else state.required() for state in seen]
            outcome = catalog.commit(changes)
            reads = {state.table: state.elements for state in seen}
            with lock:
                history.append(Transaction(id, reads, frozenset(state.table for state in written), outcome))

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    findings = check(history, {name: catalog.load(name).elements for name in tables})
    outcomes = Counter({True: "committed", False: "refused", None: "unknown"}[one.outcome] for one in history)
    return vars(findings), outcomes


def run(catalog: Catalog, arguments: argparse.Namespace) -> dict[str, Any]:
    """All tests, each on tables of its own."""
    names: list[str] = []

    def fresh(kind: str, count: int) -> list[str]:
        made = [f"{kind}_{number}" for number in range(count)]
        for name in made:
            catalog.create(name)
        names.extend(made)
        return made

    try:
        began = time.monotonic()
        result: dict[str, Any] = {"rounds": arguments.rounds}
        tests = {"lost update": lost_update, "all or nothing": all_or_nothing, "write skew": write_skew}
        for name, test in tests.items():
            result[name] = test(catalog, arguments.rounds, fresh(name.replace(" ", "_"), 2))
        lists = fresh("list", arguments.tables)
        found, outcomes = serializable(catalog, arguments.transactions, lists, arguments.clients, arguments.seed)
        result["serializable"] = {kind: len(examples) for kind, examples in found.items()}
        result["examples"] = {kind: examples[:3] for kind, examples in found.items() if examples}
        result["transactions"] = dict(outcomes)
        result["seconds"] = round(time.monotonic() - began, 1)
    finally:
        catalog.drop_all(names)
    return result


def is_clean(result: Mapping[str, Any]) -> bool:
    counts = [result["lost update"], result["all or nothing"], result["write skew"], *result["serializable"].values()]
    return not any(counts)


def is_conclusive(result: Mapping[str, Any]) -> bool:
    """Whether enough commits succeeded: a catalog that refuses every commit has no violations."""
    return result["transactions"].get("committed", 0) * 10 >= sum(result["transactions"].values())


def verdict(result: Mapping[str, Any]) -> tuple[str, int]:
    """The result in words, and the exit code."""
    if not is_clean(result):
        return "THIS CATALOG DOES NOT ISOLATE TRANSACTIONS", 1
    if not is_conclusive(result):
        return "hardly anything was committed, so this says nothing", 2
    return "nothing was found", 0


def report(result: Mapping[str, Any]) -> str:
    """The report as text."""
    rounds = result["rounds"]
    ended = ", ".join(f"{count} {how}" for how, count in sorted(result["transactions"].items()))
    lines = [
        f"{name:16} {result[name]:4} of {rounds} rounds went wrong"
        for name in ("lost update", "all or nothing", "write skew")
    ]
    lines.append(f"serializable     {ended}")
    lines += [f"  {kind.replace('_', ' '):16} {count}" for kind, count in result["serializable"].items()]
    lines += [f"  for example: {one}" for examples in result["examples"].values() for one in examples[:1]]
    return "\n".join(
        [*lines, "nothing was found" if is_clean(result) else "THIS CATALOG DOES NOT ISOLATE TRANSACTIONS"]
    )


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of the catalog, without /v1")
    parser.add_argument("--warehouse")
    parser.add_argument("--token", help="a bearer token")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'")
    parser.add_argument("--rounds", type=int, default=30, help="of each of the first three tests (30)")
    parser.add_argument("--transactions", type=int, default=200, help="of the random history (200)")
    parser.add_argument("--tables", type=int, default=4, help="of the random history (4)")
    parser.add_argument("--clients", type=int, default=8, help="at the same time (8)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    headers = {"Authorization": f"Bearer {arguments.token}"} if arguments.token else {}
    headers |= dict(header.split(": ", 1) for header in arguments.header)
    try:
        result = run(Catalog(arguments.url, arguments.warehouse, headers), arguments)
    except NotOffered as error:
        print(f"not offered: {error}", file=sys.stderr)
        return 3
    print(json.dumps(result, indent=2) if arguments.json else report(result))
    return verdict(result)[1]


if __name__ == "__main__":
    raise SystemExit(main())
