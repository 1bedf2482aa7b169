"""Every kind of statement, on a local disk and on S3, writes files that follow the format.

The second reader reads each version, so a fault in files that only one kind of statement writes is found in the version
that first contains them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from conformance.extensions import check_extensions
from conformance.lakehouse import SeedLakehouse
from conformance.name import ObjectName
from s3_server import serve

ROWS = {"id": [1, 2, 3], "v": ["a", "b", None]}
Place = tuple[tl.Lakehouse, Callable[[], Mapping[str, bytes]]]


def with_transaction(lake: tl.Lakehouse) -> None:
    with lake.transaction(message="chosen", id="job-1") as txn:
        txn.create_namespace("chosen")
        txn.create_table("chosen.t", {"id": "bigint"}).append({"id": [1]})
        txn.drop_view("s.w")


def with_saved_transactions(lake: tl.Lakehouse) -> None:
    for id in ("later", "never"):
        txn = lake.begin(id=id)
        txn.create_view(f"s.of_{id}", "SELECT 1")
        txn.table("s.t").append({"id": [9], "v": ["saved"]})
        txn.save()
    lake.resume("later").commit()
    lake.resume("never").rollback()


def with_writer(lake: tl.Lakehouse) -> None:
    with lake.table("s.t").writer(producer="sensor") as writer:
        writer.write(ROWS, sequence=7).result()


def with_merge(lake: tl.Lakehouse) -> None:
    merge = lake.table("s.t").merge({"id": [3, 5], "v": ["c", "e"]}, on=["id"])
    merge.when_matched_update().when_not_matched_insert().execute()


def with_evolution(lake: tl.Lakehouse) -> None:
    table = lake.table("s.t")
    with table.update_schema() as update:
        update.add_column("more", "double")
    with table.update_spec() as spec:
        spec.add_field("id", "bucket[4]", "shard")
    table.append({"id": [10], "v": ["j"], "more": [0.5]})


def with_registration(lake: tl.Lakehouse) -> None:
    location = lake.table("s.t").iceberg.metadata_location
    names = [f"bulk{number}" for number in range(40)]
    lake.register(
        pa.table(
            {"kind": ["namespace"] * 40 + ["table"], "namespace": [*names, "bulk7"], "name": [None] * 40 + ["t"]}
            | {"metadata_location": [None] * 40 + [location]}
        )
    )


STATEMENTS: dict[str, Callable[[tl.Lakehouse], object]] = {
    "create namespace": lambda lake: lake.create_namespace("s", {"owner": "ops"}),
    "create nested namespace": lambda lake: lake.create_namespace("s.inner"),
    "create table": lambda lake: lake.create_table("s.t", {"id": "bigint", "v": "text"}, primary_key="id"),
    "create view": lambda lake: lake.create_view("s.w", "SELECT * FROM s.t"),
    "append": lambda lake: lake.table("s.t").append(ROWS),
    "upsert": lambda lake: lake.table("s.t").upsert({"id": [2, 4], "v": ["B", "d"]}),
    "merge": with_merge,
    "delete": lambda lake: lake.table("s.t").delete("id = 1"),
    "overwrite": lambda lake: lake.table("s.t").overwrite({"id": [4], "v": ["D"]}, "id = 4"),
    "tag": lambda lake: lake.tags.create("kept"),
    "sql insert": lambda lake: lake.sql("INSERT INTO s.t VALUES (6, 'f')"),
    "sql update": lambda lake: lake.sql("UPDATE s.t SET v = 'F' WHERE id = 6"),
    "sql delete": lambda lake: lake.sql("DELETE FROM s.t WHERE id = 6"),
    "sql create table as": lambda lake: lake.sql("CREATE TABLE s.copy AS SELECT * FROM s.t"),
    "sql comment": lambda lake: lake.sql("COMMENT ON TABLE s.copy IS 'a copy'"),
    "evolution": with_evolution,
    "replace view": lambda lake: lake.replace_view("s.w", "SELECT 2"),
    "rename view": lambda lake: lake.rename_view("s.w", "s.inner.x"),
    "rename view back": lambda lake: lake.rename_view("s.inner.x", "s.w"),
    "alter namespace": lambda lake: lake.alter_namespace("s", {"owner": "dev"}),
    "alter table": lambda lake: lake.alter_table("s.t", {"note": "x"}),
    "alter lakehouse": lambda lake: lake.alter(properties={"team": "data"}),
    "transaction": with_transaction,
    "saved transactions": with_saved_transactions,
    "writer": with_writer,
    "rename table": lambda lake: lake.rename_table("s.copy", "s.inner.copy"),
    "drop table": lambda lake: lake.drop_table("s.inner.copy"),
    "roll back objects": lambda lake: lake.rollback(-1, objects="s.inner.copy"),
    "register": with_registration,
    "compact table": lambda lake: lake.table("s.t").maintenance.compact(min_files=1),
    "rewrite manifests": lambda lake: lake.table("s.t").maintenance.rewrite_manifests(),
    "expire snapshots": lambda lake: lake.table("s.t").maintenance.expire_snapshots(keep=1),
    "erase": lambda lake: lake.erase("s.t", "id = 3"),
    "roll back": lambda lake: lake.rollback(lake.version - 2),
    "compact tree": lambda lake: lake.maintenance.compact(),
    "drop tag": lambda lake: lake.tags.drop("kept"),
    "drop namespaces": lambda lake: [
        lake.drop_namespace("chosen", cascade=True),
        lake.drop_namespace("s.inner", cascade=True),
    ],
    "expire": lambda lake: lake.maintenance.expire(keep=3),
    "vacuum": lambda lake: lake.maintenance.vacuum(grace="0 seconds"),
    "maintenance": lambda lake: lake.maintenance.run(),
    "append after vacuum": lambda lake: lake.table("s.t").append({"id": [20], "v": ["z"]}),
}


@contextmanager
def place(kind: str, folder: Path) -> Iterator[Place]:
    options: dict[str, Any] = {"order": 8, "txn_ttl_millis": 1000}
    if kind == "disk":
        lake = tl.create(str(folder), **options)
        paths = folder.rglob
        yield lake, lambda: {str(one.relative_to(folder)): one.read_bytes() for one in paths("*") if one.is_file()}
        return
    with serve() as server:
        bucket = server.new_bucket()
        options["properties"] = {"commit.coordination": "queue"}
        lake = tl.create(f"s3://{bucket}/lake", storage_options=server.storage_options, **options)
        yield lake, lambda: {path.removeprefix("lake/"): data for path, data in server.files(bucket).items()}


def check(files: Mapping[str, bytes]) -> set[ObjectName]:
    """The objects of the latest version, after every rule was checked in each version."""
    lakehouse = SeedLakehouse(files)
    versions = lakehouse.versions()
    check_extensions(lakehouse, versions)
    return set(versions[-1].objects)


#: Statements before which all versions are read: the next statement removes versions, or files of old versions.
CHECKED = ("expire snapshots", "erase", "drop namespaces", "expire", "vacuum", "maintenance", "append after vacuum")


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_every_statement_keeps_the_rules(kind: str, tmp_path: Path) -> None:
    with place(kind, tmp_path / "lake") as (lake, files):
        for name, statement in STATEMENTS.items():
            statement(lake)
            if name in CHECKED if kind == "disk" else name in CHECKED[2::4]:  # a check fetches all files
                assert check(files()) == set(_objects(lake)), name
        assert lake.maintenance.fsck("all", files=True, data=True).is_sound


def _objects(lake: tl.Lakehouse) -> Iterator[ObjectName]:
    for namespace in lake.namespaces():
        yield ObjectName("namespace", namespace, "")
        for kind, names in (("table", lake.tables(namespace)), ("view", lake.views(namespace))):
            yield from (ObjectName(kind, namespace, name.rpartition(".")[2]) for name in names)


def test_copies_keep_the_rules(tmp_path: Path) -> None:
    """Exports, restored, relocated and repaired lakehouses follow the same format."""
    with place("disk", tmp_path / "lake") as (lake, _):
        for name, statement in STATEMENTS.items():
            if name == "expire":
                break
            statement(lake)
        objects = check(_files(tmp_path / "lake"))
        lake.export(str(tmp_path / "export"))
        assert check(_files(tmp_path / "export")) == objects
        shutil.copytree(tmp_path / "lake", tmp_path / "moved")
        moved = tl.open(str(tmp_path / "moved"))
        moved.maintenance.relocate()
        moved.create_namespace("after")
        assert check(_files(tmp_path / "moved")) == objects | {ObjectName("namespace", "after", "")}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
