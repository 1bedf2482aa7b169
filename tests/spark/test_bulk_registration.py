"""Registration by executors builds the same tree as one machine, and refuses the same objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake import _core, core
from trinitylake.definitions import new_view_def, serialize
from trinitylake.spark import registration
from trinitylake.spark.leaf_tasks import write_leaves
from trinitylake.spark.registration import END_OF_NAMESPACE


def new_lake(path: Path, name: str, order: int = 4) -> tl.Lakehouse:
    return tl.create(str(path / name), order=order, durability="none")


def location(kind: str, name: str) -> str:
    """A path of a definition file that need not exist."""
    return f"0000/0000/0000/00000000-{kind}-{name}.binpb"


def objects(tables: int, first: int = 0, namespaces: tuple[str, ...] = ("a", "a.b", "ä")) -> list[dict[str, Any]]:
    """Namespaces, and tables and views in them, whose definition files are not read."""
    rows = [
        {"kind": "namespace", "namespace": one, "name": None, "location": location("namespace", one)}
        for one in namespaces
    ]
    for number in range(first, first + tables):
        kind = "view" if number % 7 == 0 else "table"
        name = f"t{number * 7919 % 10_007}"
        rows.append(
            {
                "kind": kind,
                "namespace": namespaces[number % len(namespaces)],
                "name": name,
                "location": location(kind, name),
            }
        )
    return rows


def tree(lake: tl.Lakehouse) -> list[Any]:
    """The content of all nodes, without names of files, times and authors."""

    def content(path: str) -> Any:
        node = core.read_node(lake._storage.get(path), path)
        rows = list(zip(node.table["key"].to_pylist(), node.table["value"].to_pylist(), strict=True))
        children = [child for child in node.table["pnode"].to_pylist() if child is not None]
        return node.height, node.n_keys, rows, node.buffer.num_rows, [content(child) for child in children]

    return list(content(core.root_path(lake.version)))


@pytest.mark.parametrize(("order", "tables"), [(4, 1), (5, 333)])
def test_the_tree_is_that_of_one_machine(spark: SparkSession, tmp_path: Path, order: int, tables: int) -> None:
    # Names with blanks, because keys are padded with blanks and sorted with the padding.
    rows = objects(tables, namespaces=("a", "a b", "a.b", "ä"))
    rows += [
        {"kind": "table", "namespace": "a", "name": name, "location": location("table", name)}
        for name in ("t  1", "t 1", "t!1")
    ]
    alone, together = new_lake(tmp_path, "alone", order), new_lake(tmp_path, "together", order)
    expected = alone.register(rows[::-1], message="m", author="a")
    assert together.register(pa.Table.from_pylist(rows), message="m", author="a", engine=spark) == expected
    assert expected.version == 1
    assert tree(together) == tree(alone)
    assert [change.name for change in together.diff(0, 1).added] == [change.name for change in alone.diff(0, 1).added]
    assert together.log(1)[0].transactions[0].author == "a"
    if tables > 50:
        assert max(together.at().nodes()["height"].to_pylist()) >= 3


def test_objects_that_exist_are_merged_and_replaced(spark: SparkSession, tmp_path: Path) -> None:
    lakes = new_lake(tmp_path, "alone"), new_lake(tmp_path, "together")
    for lake, engine in zip(lakes, (None, spark), strict=True):
        lake.register(objects(60))
        with lake.transaction(id="chosen") as txn:  # a record in the tree, and messages in the buffer
            txn.create_namespace("own")
            txn.drop_view("a.t0")
        added = objects(50, first=60, namespaces=("a", "a.b", "ä"))[3:]
        assert lake.register(added, engine=engine).version == 3
        newer = [
            {**row, "location": location(row["kind"], "newer")}
            for row in objects(110, namespaces=("a", "a.b", "ä"))[50:]
        ]
        with pytest.raises(tl.ObjectAlreadyExists, match="exists"):
            lake.register(newer, engine=engine)
        assert lake.register(newer, replace=True, engine=engine).version == 4
        assert lake._core.outcome("chosen") == ("committed", 2)
    alone, together = lakes

    def contents(lake: tl.Lakehouse) -> dict[str, str]:
        found = pa.table(lake._core.latest().scan())
        pairs = zip(found["key"].to_pylist(), found["location"].to_pylist(), strict=True)
        # Definitions that this lakehouse wrote itself have a random id in their names.
        return {key: place if place.startswith("0000/0000/0000/00000000-") else "" for key, place in pairs}

    assert contents(together) == contents(alone)
    assert len(contents(alone)) == 3 + 110 - 1 + 1 + 1
    assert location("table", "newer") in contents(alone).values()
    shapes = [lake.at().nodes().select(["height", "n_keys", "first_key", "last_key"]).to_pydict() for lake in lakes]
    assert shapes[0] == shapes[1]


def test_definitions_are_written_by_executors(spark: SparkSession, tmp_path: Path) -> None:
    lake = new_lake(tmp_path, "lake")
    with lake.transaction() as txn:
        txn.create_namespace("old")
        txn.create_table("old.t", pa.table({"id": [1, 2]})).append(pa.table({"id": [1, 2]}))
    metadata = lake.table("old.t").iceberg.metadata_location
    view = serialize(new_view_def({"spark": "SELECT 1"}))
    schema = "kind string, namespace string, name string, definition binary, metadata_location string, "
    schema += "properties map<string, string>"
    rows: list[tuple[Any, ...]] = [("namespace", "new", None, None, None, {"owner": "ops"})]
    rows += [("table", "new", f"t{number}", None, metadata, None) for number in range(20)]
    rows += [("view", "new", f"v{number}", view, None, None) for number in range(20)]
    result = lake.register(spark.createDataFrame(rows, schema), engine=spark)
    assert (result.namespaces, result.tables, result.views) == (1, 20, 20)
    assert lake.namespace("new").properties == {"owner": "ops"}
    assert lake.table("new.t7").scan().to_arrow()["id"].to_pylist() == [1, 2]
    assert lake.view("new.v3").representations == {"spark": "SELECT 1"}
    assert lake.maintenance.fsck().findings == ()

    dry = lake.register(
        spark.createDataFrame([("view", "new", "dry", view, None, None)], schema), engine=spark, dry_run=True
    )
    assert (dry.version, dry.views, lake.version) == (None, 1, result.version)
    assert not [path for path, _, _ in lake._storage.list("") if "view-dry-" in path]

    bad = [
        *rows,
        ("table", "new", "gone", None, lake.uri + "gone/00000-x.metadata.json", None),
        ("view", "new", "w", None, None, None),
    ]
    located = spark.createDataFrame(
        [("view", "new", "x", "../x", view)],
        "kind string, namespace string, name string, location string, definition binary",
    )
    with pytest.raises(tl.RegistrationFailed, match="not the path of the definition file"):
        lake.register(located, engine=spark, dry_run=True)
    before = lake.version
    with pytest.raises(tl.RegistrationFailed) as caught:
        lake.register(spark.createDataFrame(bad, schema), engine=spark, replace=True)
    assert [one.name for one in caught.value.objects] == ["new.gone", "new.w"]
    assert lake.version == before


def test_what_one_machine_refuses_the_executors_refuse(spark: SparkSession, tmp_path: Path) -> None:
    lake = new_lake(tmp_path, "lake")
    rows = objects(30)
    for wrong, error in [
        ([*rows, rows[-1]], tl.ObjectAlreadyExists),
        (
            [*rows, {"kind": "table", "namespace": "nowhere", "name": "t", "location": location("table", "t")}],
            tl.ObjectNotFound,
        ),
        ([*rows, {**rows[4], "kind": "view", "location": location("view", "v")}], tl.ObjectAlreadyExists),
        (
            [
                *rows,
                {"kind": "table", "namespace": "a", "name": "blank at the end ", "location": location("table", "b")},
            ],
            tl.InvalidName,
        ),
        ([*rows, {"kind": "view", "namespace": "a", "name": "v", "location": "a//b"}], tl.InvalidLocation),
        ([*rows, {"kind": "chair", "namespace": "a", "name": "c", "location": "l"}], tl.InvalidArgument),
    ]:
        messages = []
        for engine, dry_run in ((None, False), (None, True), (spark, True)):
            with pytest.raises(error) as caught:
                lake.register(wrong, engine=engine, dry_run=dry_run)
            messages.append(str(caught.value))
        if error is tl.InvalidName:  # tasks find this error only in the real run
            with pytest.raises(error, match=re.escape(messages[2])):
                lake.register(wrong, engine=spark)
        assert messages[0] == messages[1]
        assert messages[0] == messages[2] or error in (tl.InvalidName, tl.InvalidArgument), messages
    assert lake.version == 0
    assert [path for path, _, _ in lake._storage.list("") if path == core.root_path(1)] == []


def test_an_import_by_executors_is_that_of_one_machine(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("sales", {"owner": "ops"})
    for name in ("sales.orders", "sales.items"):
        catalog.create_table(name, pa.schema({"id": pa.int64()})).append(pa.table({"id": [1, 2]}))
    alone, together = new_lake(tmp_path, "alone"), new_lake(tmp_path, "together")
    assert together.import_catalog(catalog, engine=spark) == alone.import_catalog(catalog)
    for lake in (alone, together):
        assert lake.namespace("sales").properties["owner"] == "ops"
        assert (lake.table("sales.items").type, lake.table("sales.items").scan().count()) == ("external", 2)
    catalog.close()


def test_a_commit_meanwhile_is_a_conflict_and_nothing_is_visible(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(tmp_path, "lake")
    rival = tl.open(lake.uri, durability="none")

    def and_meanwhile(*arguments: Any) -> None:
        rival.create_namespace("rival")

    monkeypatch.setattr(registration, "_check_parts", and_meanwhile)
    with pytest.raises(tl.CommitConflict):
        lake.register(objects(30), engine=spark)
    assert lake.namespaces() == ["rival"]
    assert lake.tables() == []


def test_a_task_that_fails_once_is_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = new_lake(tmp_path, "alone"), new_lake(tmp_path, "together")
    flag = tmp_path / "failed"

    def fails_once(*arguments: Any) -> Any:
        """Writes all leaves of its partition, and fails at the first attempt."""
        done = list(write_leaves(*arguments))
        if not flag.exists():
            flag.touch()
            raise OSError("the executor is lost")
        yield from done

    monkeypatch.setattr(registration, "write_leaves", fails_once)
    rows = objects(200)
    together.register(rows, engine=spark)
    assert flag.exists()
    alone.register(rows)
    assert tree(together) == tree(alone)
    orphans = sum(path.endswith(".arrow") for path, _, _ in together._storage.list("")) - together.at().nodes().num_rows
    assert orphans > 1  # leaves of the failed attempt, and the empty root of version 0


def test_rows_that_were_not_counted_are_refused(tmp_path: Path) -> None:
    """A frame that returns other rows when it is evaluated again is refused. The test needs no Spark."""
    lake = new_lake(tmp_path, "lake")
    texts = pa.record_batch({"text": [f"Ba{i:03d}{END_OF_NAMESPACE}" for i in range(50)], "location": ["l"] * 50})
    writer = _core.LeafWriter(lake._storage, lake._core.latest().definition, 45, 0)
    with pytest.raises(tl.InvalidArgument, match="45 that were counted"):
        writer.write(texts)
    with pytest.raises(tl.InvalidArgument, match="finished, or failed"):
        writer.finish()
    writer = _core.LeafWriter(lake._storage, lake._core.latest().definition, 55, 0)
    parts = [pa.record_batch(writer.write(texts)), pa.record_batch(writer.finish())]
    with pytest.raises(tl.InvalidArgument, match="is missing"):
        lake._core.register_parts(lake._core.latest(), 55, pa.Table.from_batches(parts))
    assert lake.version == 0
