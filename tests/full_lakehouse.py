"""A lakehouse with all kinds of files that a garbage collection must distinguish."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

import trinitylake as tl
from local_files import age

ROWS = pa.table({"id": list(range(10)), "day": ["a", "b"] * 5})


def full_lakehouse(root: Path) -> tl.Lakehouse:
    """A lakehouse with all kinds of files that a collection must distinguish, each an hour old.

    It has tables with removed files, a dropped table, a rollback, a root below the expiry boundary, an external table,
    and unknown files.
    """
    small = {"root.buffer-size-bytes": "900", "inner.buffer-size-bytes": "500"}
    lake = tl.create(str(root), durability="none", txn_ttl_millis=1, order=4, properties=small)
    lake.create_namespace("shop")
    for name in ("orders", "items", "gone"):
        lake.create_table(f"shop.{name}", ROWS, partition_spec=["day"]).append(ROWS)
    lake.tags.create("early")
    lake.table("shop.orders").append(ROWS)
    lake.table("shop.orders").delete("id < 3")
    lake.drop_table("shop.gone")
    before = lake.version
    lake.table("shop.items").overwrite(ROWS.slice(0, 2))
    lake.rollback(before)
    for number in range(20):
        lake.create_namespace(f"n{number}")
    folder = Path(lake.table("shop.orders").iceberg.location().removeprefix("file://"))
    theirs = root / "x" / "t-01234567"
    shutil.copytree(folder, theirs)
    metadata = sorted((theirs / "metadata").glob("*.metadata.json"))[-1]
    metadata.write_text(metadata.read_text().replace(str(folder), str(theirs)))
    lake.create_table("shop.theirs", metadata_location=f"file://{metadata}")
    lake.maintenance.expire(keep=3)
    (root / "notes").mkdir()
    (root / "notes/readme.txt").write_text("nobody's")
    age(root)
    return lake
