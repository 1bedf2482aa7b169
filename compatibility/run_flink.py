"""Released Flink as a client of the REST server: part of `make compatibility`.

A Python package contains Flink; Maven fetches the SQL gateway, Iceberg and Hadoop (`flink.xml`). The gateway runs jobs
in its own process, in batch mode, and logs to `target/compatibility/flink.log`. The exit code is 0 only if every
statement has the expected result.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts import TARGET, fetched
from engine_work import Report, Rows, StatementFailed, compare

import trinitylake as tl

START_SECONDS = 300
#: Options of Flink's own start scripts for Java 17.
OPENED = ("java.lang", "java.util", "java.net", "java.io", "java.nio", "java.text", "java.time", "java.lang.reflect")
OPENED += ("java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch")
#: The reason for a failed job is only in the log of its cluster.
LOGGING = """rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c %m%n
"""


class Flink:
    """Session of a running gateway, which writes a log."""

    def __init__(self, url: str, log: Path) -> None:
        self._url = url
        self._log = log
        self._session = f"/v3/sessions/{self._ask('POST', '/v3/sessions', {})['sessionHandle']}"

    def attach(self, name: str, url: str, token: str, warehouse: str) -> None:
        """Attach a catalog under this name. Raises `StatementFailed`."""
        settings = {"type": "iceberg", "catalog-type": "rest", "uri": url, "token": token, "warehouse": warehouse}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
        self.run(f"CREATE CATALOG {name} WITH ({listed})")

    def run(self, statement: str) -> Rows:
        """Run a statement and return its rows after the job has ended. Raises `StatementFailed`."""
        if statement.startswith("SHOW DATABASES IN "):  # Flink's word for it
            statement = statement.replace(" IN ", " FROM ")
        log_size = self._log.stat().st_size
        try:
            return self._result(statement)
        except StatementFailed as error:
            # The response for a failed job says only that its cluster has ended; the reason is in the log.
            with self._log.open("rb") as log:
                log.seek(log_size)
                lines = f"{error}\n{log.read().decode()}".splitlines()
            causes = [line.strip() for line in lines if line.startswith("Caused by: ")]
            raise StatementFailed("\n".join(dict.fromkeys(causes)) or str(error)) from error

    def _result(self, statement: str) -> Rows:
        operation = self._ask("POST", f"{self._session}/statements", {"statement": statement})["operationHandle"]
        rows: Rows = []
        next_path: str | None = f"{self._session}/operations/{operation}/result/0"
        while next_path is not None:
            answer = self._ask("GET", next_path)
            rows += [tuple(row["fields"]) for row in answer.get("results", {}).get("data", [])]
            if answer["resultType"] == "NOT_READY":
                time.sleep(0.1)
            next_path = None if answer["resultType"] == "EOS" else answer.get("nextResultUri")
        return rows

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise StatementFailed("\n".join(json.load(error)["errors"])) from error


@contextmanager
def running() -> Iterator[Flink]:
    """Run the gateway on a free port, with at most 1.5 GB of heap."""
    java = shutil.which("java")
    if java is None:
        raise SystemExit("Flink needs Java 17")
    package = importlib.util.find_spec("pyflink")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("Flink comes with its Python package: pip install --group compatibility")
    lib = Path(package.submodule_search_locations[0]) / "lib"
    jars = [*sorted(lib.glob("*.jar")), *fetched("flink.xml")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, (TARGET / "flink.log").open("w") as log:
        settings = {
            "execution.target": "local",
            "execution.runtime-mode": "batch",
            "table.dml-sync": "true",  # an INSERT ends when its job does
            "parallelism.default": "1",
            "sql-gateway.endpoint.rest.address": "127.0.0.1",
            "sql-gateway.endpoint.rest.bind-address": "127.0.0.1",
            "sql-gateway.endpoint.rest.port": str(port),
        }
        (Path(folder) / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        (Path(folder) / "logging.properties").write_text(LOGGING)
        command = [java, "-Xmx1500m", f"-Dlog4j.configurationFile={folder}/logging.properties"]
        command += [*(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED)]
        command += ["-cp", ":".join(map(str, jars)), "org.apache.flink.table.gateway.SqlGateway"]
        environment = {**os.environ, "FLINK_CONF_DIR": folder, "FLINK_LIB_DIR": str(lib)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(f"http://127.0.0.1:{port}/v3/info", process)
            yield Flink(f"http://127.0.0.1:{port}", TARGET / "flink.log")
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for a response. Ends the program if there is none."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"Flink did not start: see {TARGET / 'flink.log'}")


def own_statements(engine: Flink, lake: tl.Lakehouse, report: Report) -> None:
    """Statements of Flink SQL: tables with a primary key and upserts, overwrites, changed tables."""
    check, run = report.check, engine.run
    run(
        "CREATE TABLE lake.shop.stock (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED) "
        "WITH ('format-version' = '2', 'write.upsert.enabled' = 'true')"
    )
    run("INSERT INTO lake.shop.stock VALUES (1, 'a'), (2, 'b')")
    run("INSERT INTO lake.shop.stock VALUES (2, 'c')")
    check("a key has one row", sorted(run("SELECT id, name FROM lake.shop.stock")), [(1, "a"), (2, "c")])
    # Upserts write equality deletes.
    stock = lake.table("shop.stock")
    found = sorted(tuple(row.values()) for row in stock.scan().to_arrow().to_pylist())
    check("others apply deletes by values", found, [(1, "a"), (2, "c")])
    check("and delete a row", stock.delete("id = 1").rows_deleted, 1)
    check("and overwrite rows", stock.overwrite({"id": [1], "name": ["z"]}, filter="id = 1").rows_inserted, 1)
    stock.append({"id": [3], "name": ["d"]})
    check("and Flink reads them", sorted(run("SELECT * FROM lake.shop.stock")), [(1, "z"), (2, "c"), (3, "d")])
    run("CREATE TABLE lake.shop.days (id BIGINT, name STRING) PARTITIONED BY (name)")
    run("INSERT INTO lake.shop.days VALUES (1, 'mon'), (2, 'tue')")
    run("INSERT OVERWRITE lake.shop.days VALUES (3, 'tue')")
    check("a partition is overwritten", sorted(run("SELECT * FROM lake.shop.days")), [(1, "mon"), (3, "tue")])
    found = sorted(tuple(row.values()) for row in lake.table("shop.days").scan().to_arrow().to_pylist())
    check("and others read that", found, [(1, "mon"), (3, "tue")])
    run("ALTER TABLE lake.shop.days SET ('color' = 'red')")
    check("a property is set", lake.table("shop.days").iceberg.properties.get("color"), "red")
    run("ALTER TABLE lake.shop.days ADD (price DOUBLE)")
    check("a column is added", sorted(run("SELECT id, price FROM lake.shop.days")), [(1, None), (3, None)])
    run("ALTER TABLE lake.shop.days RENAME TO weekdays")
    check("a table has another name", lake.exists("shop.weekdays"), True)
    for name in ("weekdays", "stock"):
        run(f"DROP TABLE lake.shop.{name}")
        check("a table is dropped", lake.exists(f"shop.{name}"), False)


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    with running() as engine:
        return compare("Flink", engine, "DATABASE", own_statements)


if __name__ == "__main__":
    raise SystemExit(main())
