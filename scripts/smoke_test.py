"""Tests an installed wheel without the checkout: create, commit, read, time travel, and the command line.

Usage: `cd /somewhere/else && python smoke_test.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

import trinitylake as tl


def main() -> None:
    assert "site-packages" in str(Path(tl.__file__)), f"not the installed package: {tl.__file__}"
    with tempfile.TemporaryDirectory() as root:
        lake = tl.create(f"{root}/lake", name="smoke")
        rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
        with lake.transaction(message="load") as transaction:
            transaction.create_namespace("ns")
            transaction.create_table("ns.left", rows).append(rows)
            transaction.create_table("ns.right", rows).append(rows)
        lake.table("ns.left").delete("id = 2")
        assert lake.tables("ns") == ["ns.left", "ns.right"]
        assert lake.table("ns.left").scan().to_arrow()["id"].to_pylist() == [1, 3]
        assert lake.at(1).table("ns.left").scan().to_arrow().num_rows == 3
        command = Path(sys.executable).with_name("trinitylake")
        # Spark imports the data source by the name of this package.
        assert find_spec("pyspark_trinitylake") is not None
        listing = subprocess.run([command, "ls", "--root", f"{root}/lake", "--json"], check=True, capture_output=True)
        assert b"ns" in listing.stdout
    print(f"wheel works: trinitylake {tl.__version__} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
