"""Write the golden lakehouses of a release below `tests/golden/`.

    python scripts/write_golden_files.py 0.1     # replaces tests/golden/0.1/

Until a release is out, its folder is replaced after each change of what the writer puts on storage. Afterwards it is
never written again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import stepped_store  # noqa: E402
import trinitylake as tl  # noqa: E402
from golden import archive  # noqa: E402
from trinitylake import _core, core  # noqa: E402
from trinitylake.definitions import MANIFEST_LIST  # noqa: E402

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "city": ["Zürich", "New York", "東京"]})

#: Settings of each lakehouse, and the number of namespaces that make its tree grow.
LAKEHOUSES: dict[str, tuple[dict[str, Any], int]] = {
    "order_3": ({"order": 3, "properties": {"root.buffer-size-bytes": "900", "inner.buffer-size-bytes": "900"}}, 24),
    "order_128": ({"properties": {"owner": "golden"}}, 640),
}


def write_history(lake: tl.Lakehouse, names: int) -> None:
    """Write at least 25 versions with all features of the format."""
    chosen = random.Random(1)
    spare = [f"space{number:04d}" for number in range(names)]
    with lake.transaction(message="set up", author="golden", properties={"job": "1"}) as txn:
        txn.create_namespace("nyc", {"owner": "ops", "Größe": "東京"})
        txn.create_namespace("nyc.inner")
        txn.create_namespace("名前空間")
        txn.create_table("nyc.cities", ROWS.schema).append(ROWS)
        txn.create_view("nyc.big", {"spark": "SELECT * FROM cities", "trino": "SELECT id FROM cities"})
    per_version = len(spare) // 8
    for first in range(0, len(spare), per_version):
        with lake.transaction(message=f"spaces from {first}") as txn:
            for name in spare[first : first + per_version]:
                txn.create_namespace(name, {"number": name[-4:]})
    lake.table("nyc.cities").append({"id": [4], "city": ["Nairobi"]})
    with lake.transaction(id="golden-load-1", message="exactly once", isolation="serializable") as txn:
        txn.create_table("nyc.inner.codes", {"code": "varchar(3)", "rank": "int"}, primary_key="code")
        txn.create_view("nyc.inner.top", "SELECT 1", dialect="duckdb")
    lake.alter({"stage": "golden"}, name="golden lakehouse")
    lake.alter_namespace("nyc", {"owner": "research"}, remove_properties=["Größe"])
    lake.rename_table("nyc.cities", "nyc.inner.places")
    lake.rename_view("nyc.big", "nyc.large")
    before = lake.version
    lake.drop_namespace("名前空間")
    with lake.transaction(message="bad load") as txn:
        for name in chosen.sample(spare, per_version):
            txn.drop_namespace(name)
    lake.rollback(before, message="the load was bad", author="golden")
    rest = list(spare)
    chosen.shuffle(rest)
    for _ in range(6):
        with lake.transaction(message="delete") as txn:
            for name in [rest.pop() for _ in range(max(2, per_version // 2))]:
                txn.drop_namespace(name)
    lake.table("nyc.inner.places").delete("id = 2")
    lake.replace_view("nyc.large", "SELECT city FROM places")
    lake.drop_table("nyc.inner.codes")
    lake.drop_namespace("名前空間")
    lake.create_namespace("名前空間", {"again": "yes"})
    lake.create_namespace("new york", {"with": "a space"})
    lake.create_view("new york.upper  west side", "SELECT 2")
    given_up = lake.begin(id="golden-given-up", message="half a load")
    given_up.create_namespace("never")
    given_up.save()
    given_up.save()
    given_up.rollback()
    waiting = lake.begin(id="golden-waiting", message="to be resumed")
    waiting.create_namespace("waiting")
    waiting.save()


def root_of(lake: tl.Lakehouse, version: int) -> dict[str, str]:
    """The system rows of a root."""
    return core.read_node(lake._storage.get(core.root_path(version))).system


def check_features(lake: tl.Lakehouse) -> None:
    """Raise an error if the history did not use all features."""
    versions = range(lake.version + 1)
    trees = [lake.at(version=version).nodes().to_pylist() for version in range(lake.version + 1)]
    highest = [tree[0]["height"] for tree in trees]
    parked = 0
    for tree in trees:
        for row in tree:
            if row["height"]:
                node = core.read_node(lake._storage.get(row["path"]))
                keys = set(node.table.column("key").to_pylist()) - {None}
                messages = node.buffer.to_pylist()
                parked += sum(message["value"] is None and message["key"] in keys for message in messages)
    features = {
        "25 versions": lake.version >= 25,
        "splits": max(highest) >= 1 and max(map(len, trees)) > 3,
        "parked deletes": parked > 0,
        "a rollback": any(entry.rollback_from is not None for entry in lake.log(None)),
        "the last rollback in each root": all("last_rollback" in root_of(lake, version) for version in versions),
        "a root that is recorded": lake.uri.removesuffix("/") in str(lake.at()._state().definition),
        "names with inner spaces": lake.exists("new york") and lake.exists("new york.upper  west side"),
        "a transaction that was rolled back": lake.transactions.outcome("golden-given-up").status == "rolled back",
        "a transaction that waits": [one.id for one in lake.transactions.list()] == ["golden-waiting"],
        "summaries": all(one.summary for entry in lake.log(None) for one in entry.transactions),
        "a manifest list in a definition": MANIFEST_LIST
        in lake.table("nyc.inner.places")._definition.format_properties,
        "rows in a summary": any(entry.summary == "append +1 row nyc.cities" for entry in lake.log(None)),
        "a chosen id": any(one.id == "golden-load-1" for entry in lake.log(None) for one in entry.transactions),
    }
    if missing := [name for name, there in features.items() if not there]:
        raise SystemExit(f"{lake.name}: the history lacks {', '.join(missing)} (heights {highest}, parked {parked})")


def write_lakehouse(name: str) -> dict[str, bytes]:
    """Write one lakehouse in memory, at a new root: its archive and its expected content."""
    settings, names = LAKEHOUSES[name]
    root = f"memory://golden-{uuid.uuid4()}"
    # Saved transactions can be resumed without a time limit.
    lake = tl.create(root, name=name, txn_ttl_millis=1000 * 365 * 24 * 3600 * 1000, **settings)
    write_history(lake, names)
    check_features(lake)
    description = {"root": root, **archive.describe(lake), "rows": archive.describe_rows(lake)}
    storage = _core.Storage(root)
    files = {path: storage.get(path) for path, _, _ in storage.list("")}
    print(f"{name}: {lake.version + 1} versions, {len(files)} files")
    return packed(name, files, description)


def write_held_definitions() -> dict[str, bytes]:
    """Write a lakehouse on a remote store whose last writer died after the root, before the files of the definitions in
    it."""
    name = archive.HELD_DEFINITIONS
    prefix = "golden/"
    with stepped_store.running() as store:
        lake = tl.create(f"s3://bucket/{prefix}", name=name, storage_options=store.storage_options)
        lake.create_namespace("before", properties={"owner": "ops"})
        lake.create_table("before.cities", ROWS.schema)
        with lake.transaction(message="held by its root alone") as txn:
            txn.create_namespace("held", {"Größe": "東京"})
            txn.create_view("before.big", {"spark": "SELECT * FROM cities", "trino": "SELECT id FROM cities"})
            txn.alter_namespace("before", {"owner": "research"})
        description = {"root": lake.uri, **archive.describe(lake)}
        stored = {path: data for (_, path), data in store.objects.items() if path.startswith(prefix)}
        files = {path.removeprefix(prefix): data for path, data in stored.items()}
        held = archive.held_definitions(root_of(lake, lake.version))
    if len(held) != 3:
        raise SystemExit(f"{name}: its last root holds {sorted(held)}")
    print(f"{name}: {description['latest'] + 1} versions, {len(files)} files without {len(held)} definitions")
    return packed(name, {path: data for path, data in files.items() if path not in held}, description)


def packed(name: str, files: dict[str, bytes], description: dict[str, Any]) -> dict[str, bytes]:
    """The two files of a golden lakehouse."""
    return {
        f"{name}.tar.gz": archive.pack(files),
        f"{name}.json.gz": gzip.compress(json.dumps(description, ensure_ascii=False).encode(), mtime=0),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", help="such as 0.1")
    folder = archive.FOLDER / parser.parse_args().release
    files = {file: data for name in LAKEHOUSES for file, data in write_lakehouse(name).items()}
    files |= write_held_definitions()
    folder.mkdir(exist_ok=True)
    for file, data in files.items():
        (folder / file).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
