"""dlt and Polars as unmodified clients of the REST server: part of `make compatibility`.

    python compatibility/run_dlt_polars.py PYTHON

The argument is the Python of their environment (dependency group `clients`). The server runs in this process. The
clients work on the latest version, and in an open transaction that no other client sees before its commit.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import requests

import trinitylake as tl
from trinitylake import rest

PROGRAM = Path(__file__).with_name("dlt_and_polars.py")
TOKEN = "a-token-for-this-run-alone"
TABLES = ["cities", "frame", "fresh", "trips"]


def tables(state: tl.Lakehouse | tl.LakehouseVersion, namespace: str) -> set[str]:
    """Tables of a namespace, without the internal tables of dlt."""
    found = state.tables(namespace) if namespace in state.namespaces() else []
    return {name.rpartition(".")[2] for name in found} - {"_dlt_loads", "_dlt_version", "_dlt_pipeline_state"}


def main(python: str) -> None:
    python = str(Path(python).absolute())
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake")
        # dlt writes tables to the same place as its own files, so both are in the lakehouse.
        with rest.serve(lake, token=TOKEN) as url:

            def run(warehouse: str, name: str) -> None:
                command = [python, str(PROGRAM), url, f"{folder}/lake", warehouse, TOKEN, name]
                subprocess.run(command, check=True, cwd=folder)

            run("@latest", "now")
            assert tables(lake, "now") == set(TABLES)
            before, headers = lake.version, {"Authorization": f"Bearer {TOKEN}"}
            begun = requests.post(f"{url}/trinitylake/v1/transactions", json={}, headers=headers, timeout=60).json()
            run(begun["warehouse"], "later")
            assert lake.version == before, "a transaction is invisible before its commit"
            path = f"{url}/trinitylake/v1/transactions/{begun['id']}/commit"
            answer = requests.post(path, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            assert lake.version == before + 1
            assert tables(lake, "later") == set(TABLES)
            assert lake.table("later.trips").scan().to_arrow().num_rows == 17


if __name__ == "__main__":
    main(*sys.argv[1:])
