"""Statements that any SQL engine must be able to run as a client of the server.

An engine attaches catalogs by their warehouse and runs statements. Each step compares the results, or the content of
the lakehouse, with expected values. PyIceberg is a second client of the same transactions.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from trinitylake.rest import RestServer, serve

TOKEN = "a-token-that-is-long-enough"
#: Error messages of clients for a write to an old version: the server offers no write endpoints there.
READ_ONLY = "Server does not support endpoint"
Rows = list[tuple[Any, ...]]
ROW = pa.table({"id": pa.array([9], pa.int64()), "amount": pa.array([9.5], pa.float64())})


class StatementFailed(Exception):
    """Error of an engine for a statement."""


class Engine(Protocol):
    """A SQL engine that runs."""

    def attach(self, name: str, url: str, token: str, warehouse: str) -> None:
        """Attach a catalog under this name. Raises `StatementFailed`."""

    def run(self, statement: str) -> Rows:
        """Run a statement and return its rows. Raises `StatementFailed`."""


class Report:
    """Results of the checks of one engine."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._passed = 0
        self._failed = 0

    def check(self, what: str, found: object, wanted: object) -> None:
        """Record whether a condition holds."""
        if found == wanted:
            self._passed += 1
        else:
            self._failed += 1
            print(f"failed: {what}: found {found!r}, not {wanted!r}", flush=True)

    def check_refused(self, what: str, work: Callable[[], object], reason: str) -> None:
        """Record whether a statement is refused with this reason in the message."""
        try:
            found: object = work()
        except StatementFailed as error:
            found = reason if reason in str(error) else str(error)
        self.check(what, found, reason)

    def exit_code(self) -> int:
        """Print the number of checks. Returns 0 if there was at least one, and none failed."""
        print(f"[ {self._passed} checks successful with {self._engine}, {self._failed} failed ]")
        return int(self._failed > 0 or self._passed == 0)


class Work:
    """The steps, in order, over one server.

    Args:
        engine: runs the statements.
        server: a server over an empty lakehouse, with a token.
        lake: the same lakehouse, opened directly.
        namespace_word: the engine's keyword for a namespace.
        report: records the results.
    """

    def __init__(
        self, engine: Engine, server: RestServer, lake: tl.Lakehouse, namespace_word: str, report: Report
    ) -> None:
        self._engine = engine
        self._server = server
        self._lake = lake
        self._namespace_word = namespace_word
        self._report = report

    def latest(self) -> int:
        """Create, write and read tables at the latest version. Returns the version, which has two tables of two
        rows."""
        check, run, lake = self._report.check, self._engine.run, self._lake
        self._attach("lake", "@latest")
        run(f"CREATE {self._namespace_word} lake.shop")
        lake.create_namespace("other")
        found = {name for (name,) in run(f"SHOW {self._namespace_word}S IN lake")} - {"information_schema", "system"}
        check("namespaces are listed", found, {"shop", "other"})
        for table in ("orders", "totals"):
            run(f"CREATE TABLE lake.shop.{table} (id BIGINT, amount DOUBLE)")
            check("a new table is empty", self._rows("lake", table), [])
            run(f"INSERT INTO lake.shop.{table} VALUES (1, 1.5), (2, 2.5)")
            check("it reads what it wrote", self._rows("lake", table), [(1, 1.5), (2, 2.5)])
            check("others read what it wrote", self._rows_of_lake(table), [(1, 1.5), (2, 2.5)])
        check("tables are listed", sorted(run("SHOW TABLES IN lake.shop")), [("orders",), ("totals",)])
        before = lake.version
        lake.table("shop.orders").append(ROW)
        check("it reads what others wrote", self._rows("lake", "orders"), [(1, 1.5), (2, 2.5), (9, 9.5)])
        self._report.check_refused(
            "a table that is there is not made again",
            lambda: run("CREATE TABLE lake.shop.orders (id BIGINT)"),
            "already exists",
        )
        return before

    def one_transaction(self) -> None:
        """Change two tables and create one in a transaction, which becomes one version, or none."""
        check, run, lake = self._report.check, self._engine.run, self._lake
        for end in ("rollback", "commit"):
            begun = self._post("", {"message": f"by an engine: {end}"})
            name, before = f"tx_{end}", lake.version
            orders, totals = self._rows_of_lake("orders"), self._rows_of_lake("totals")
            self._attach(name, begun["warehouse"])
            run(f"INSERT INTO {name}.shop.orders VALUES (10, 10.5)")
            run(f"INSERT INTO {name}.shop.totals SELECT id, amount FROM {name}.shop.orders WHERE id = 10")
            run(f"CREATE TABLE {name}.shop.fresh_{end} (id BIGINT, amount DOUBLE)")
            run(f"INSERT INTO {name}.shop.fresh_{end} VALUES (1, 1.5)")
            for table, rows in (("orders", orders), ("totals", totals)):
                check("a transaction sees its own writes", self._rows(name, table), sorted([*rows, (10, 10.5)]))
                check("nobody else does", self._rows("lake", table), rows)
            check("nothing is committed yet", lake.version, before)
            self._post(f"/{begun['id']}/{end}")
            is_committed = end == "commit"
            more = [(10, 10.5)] if is_committed else []
            check("the end makes one version, or none", lake.version, before + is_committed)
            check("the new table is there, or not", lake.exists(f"shop.fresh_{end}"), is_committed)
            for table, rows in (("orders", orders), ("totals", totals)):
                check("both tables changed, or none", self._rows_of_lake(table), sorted([*rows, *more]))
                check("so the engine reads, too", self._rows("lake", table), sorted([*rows, *more]))

    def together(self) -> None:
        """The engine and PyIceberg use one transaction; each reads the rows that the other wrote."""
        check, run, lake = self._report.check, self._engine.run, self._lake
        begun, before = self._post("", {"message": "together"}), lake.version
        orders, totals = self._rows_of_lake("orders"), self._rows_of_lake("totals")
        self._attach("tx_together", begun["warehouse"])
        other = RestCatalog(
            "other", uri=self._server.url, warehouse=begun["warehouse"], token=self._server.token
        ).load_table("shop.totals")
        other.append(ROW)
        check("it sees what PyIceberg wrote", self._rows("tx_together", "totals"), sorted([*totals, (9, 9.5)]))
        run("INSERT INTO tx_together.shop.orders VALUES (11, 11.5)")
        run("INSERT INTO tx_together.shop.totals VALUES (11, 11.5)")
        found = sorted(tuple(row.values()) for row in other.refresh().scan().to_arrow().to_pylist())
        check("PyIceberg sees what it wrote", found, sorted([*totals, (9, 9.5), (11, 11.5)]))
        self._post(f"/{begun['id']}/commit")
        check("that is one version", lake.version, before + 1)
        check("with the engine's rows", self._rows_of_lake("orders"), sorted([*orders, (11, 11.5)]))
        check("and those of both", self._rows_of_lake("totals"), sorted([*totals, (9, 9.5), (11, 11.5)]))

    def past(self, version: int) -> None:
        """Read an old version; every write to it is refused."""
        refused, run, before = self._report.check_refused, self._engine.run, self._lake.version
        self._attach("past", f"@version/{version}")
        for table in ("orders", "totals"):
            self._report.check("the past is as it was", self._rows("past", table), [(1, 1.5), (2, 2.5)])
        for statement in (
            "INSERT INTO past.shop.orders VALUES (1, 1.5)",
            "CREATE TABLE past.shop.new_one (id BIGINT)",
            "DROP TABLE past.shop.orders",
            f"CREATE {self._namespace_word} past.new_one",
        ):
            refused(f"the past does not change: {statement}", lambda statement=statement: run(statement), READ_ONLY)
        self._report.check("nothing was committed", self._lake.version, before)

    def _attach(self, name: str, warehouse: str) -> None:
        self._engine.attach(name, self._server.url, self._server.token, warehouse)

    def _rows(self, catalog: str, table: str) -> Rows:
        return sorted(self._engine.run(f"SELECT id, amount FROM {catalog}.shop.{table}"))

    def _rows_of_lake(self, table: str) -> Rows:
        return sorted(tuple(row.values()) for row in self._lake.table(f"shop.{table}").scan().to_arrow().to_pylist())

    def _post(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._server.url}/trinitylake/v1/transactions{path}",
            json.dumps(body or {}).encode(),
            {"Authorization": f"Bearer {self._server.token}"},
            method="POST",
        )
        with urllib.request.urlopen(request) as response:
            text = response.read()
        return json.loads(text) if text else {}


AnyEngine = TypeVar("AnyEngine", bound=Engine)


def compare(
    name: str, engine: AnyEngine, namespace_word: str, own_statements: Callable[[AnyEngine, tl.Lakehouse, Report], None]
) -> int:
    """Run all steps, and those for this engine only, over a new lakehouse. Returns the exit code."""
    report = Report(name)
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake", durability="none")
        with (server := serve(lake, token=TOKEN)):
            work = Work(engine, server, lake, namespace_word, report)
            version = work.latest()
            own_statements(engine, lake, report)
            work.one_transaction()
            work.together()
            work.past(version)
    return report.exit_code()
