"""Run PyIceberg's own integration tests of REST catalogs against this server: part of `make compatibility`.

The tests are in the source of the installed version, which pip fetches. The server runs in this process over an empty
lakehouse in a temporary folder, at the address that the tests expect. Output of pytest is written to
`target/compatibility/pyiceberg.txt`. The exit code is 0 only if every test that applies has passed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

import trinitylake as tl
from trinitylake import rest

TARGET = Path(__file__).resolve().parent.parent / "target" / "compatibility"
THEIR_SERVER = "http://localhost:8181"

#: Test files about the catalog and its commits. The others read tables that Spark wrote.
FILES = (
    "test_catalog.py",
    "test_partition_evolution.py",
    "test_rest_catalog.py",
    "test_rest_scan_planning_integration.py",
    "test_rest_schema.py",
    "test_snapshot_operations.py",
    "test_sort_order_update.py",
    "test_statistics_operations.py",
)
#: Parts of the names of skipped tests: parameters for other catalogs, and a test that writes with Spark in a container.
LEFT_OUT = ("hive", "memory_catalog", "sqlite_catalog", "test_rest_scan_with_deletes")
#: A table that the tests expect, with some snapshots.
THEIR_TABLE = "default.test_table_snapshot_operations"

#: Tests that may fail with any parameters, and the reasons. The run fails if one of them passes.
EXPECTED_FAILURES = {
    "test_manage_statistics": "it names a file of statistics outside of the lakehouse",
    "test_namespace_with_dot": "the lakehouse joins the parts of a namespace with dots",
    "test_rest_custom_namespace_separator": "it wants the separator that their server is set up with",
}
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) tests/integration/(test_\w+\.py(?:::(\w+))?)", re.M)


def tests(release: str) -> Path:
    """Folder with the tests of a source release, without the package, which is installed."""
    folder = TARGET / f"pyiceberg-{release}"
    if not (folder / "tests" / "conftest.py").exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary", ":all:", "--dest", str(TARGET), f"pyiceberg=={release}"]
        subprocess.run(command, check=True)
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(TARGET, filter="data")
        shutil.rmtree(folder / "pyiceberg")
    return folder


def run(source: Path, url: str, arguments: Sequence[str]) -> str:
    """Run the tests with pytest. Returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pyiceberg"
        shutil.copytree(source / "tests", copy / "tests")
        for file in copy.rglob("*.py"):
            text = file.read_text()
            if THEIR_SERVER in text:
                file.write_text(text.replace(THEIR_SERVER, url))
        (copy / "pytest.ini").write_text("[pytest]\nmarkers =\n    integration\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", "-q"]
        command += ["-k", " and ".join(f"not {name}" for name in LEFT_OUT), *arguments]
        command += [f"tests/integration/{name}" for name in FILES]
        environment = {
            **os.environ,
            "PYICEBERG_TEST_CATALOG": "served",
            "PYICEBERG_CATALOG__SERVED__TYPE": "rest",
            "PYICEBERG_CATALOG__SERVED__URI": url,
        }
        done = subprocess.run(
            command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    source = tests(version("pyiceberg"))
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake", durability="none")
        lake.create_namespace("default")
        rows = pa.table({"number": pa.array([1], pa.int32())})
        table = lake.create_table(THEIR_TABLE, rows)
        for _ in range(5):
            table.append(rows)
        with rest.serve(lake, options=rest.ServerOptions(overrides_locations=True)) as url:
            text = run(source, url, arguments)
    (TARGET / "pyiceberg.txt").write_text(text)
    outcomes = [(outcome, test or file) for outcome, file, test in _OUTCOME.findall(text)]
    passed = [name for outcome, name in outcomes if outcome == "PASSED"]
    failed = {name for outcome, name in outcomes if outcome != "PASSED"}
    print(f"[ {len(passed)} tests successful of PyIceberg's ]")
    for name in sorted(failed & EXPECTED_FAILURES.keys()):
        print(f"does not apply: {name}: {EXPECTED_FAILURES[name]}")
    unexpected = (failed - EXPECTED_FAILURES.keys()) | (EXPECTED_FAILURES.keys() - failed)
    for name in sorted(unexpected):
        print(f"{'failed' if name in failed else 'passed, though it should not'}: {name}")
    return int(bool(unexpected) or len(passed) < 100)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
