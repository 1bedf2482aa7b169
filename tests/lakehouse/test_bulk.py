"""Many objects in one version: registration, and the import of another catalog."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake import _core
from trinitylake.cli.app import app
from trinitylake.definitions import ViewDef, new_id, new_namespace_def, new_table_def, new_view_def, serialize
from trinitylake.iceberg import TrinityLakeCatalog

ROWS = pa.table({"id": [1, 2, 3]})
VIEW = serialize(new_view_def({"spark": "SELECT 1"}))


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    return tl.create(str(tmp_path / "lake"), order=4, durability="none")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """Another catalog with two non-empty namespaces, one nested in the other, and three tables."""
    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("other", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("sales", {"owner": "ops", "location": "file:///elsewhere/sales"})
    catalog.create_namespace("sales.eu")
    catalog.create_namespace("empty")
    for name in ("sales.orders", "sales.items", "sales.eu.orders"):
        catalog.create_table(name, ROWS.schema).append(ROWS)
    yield catalog
    catalog.close()


def view(namespace: str, name: str) -> dict[str, Any]:
    return {"kind": "view", "namespace": namespace, "name": name, "definition": VIEW}


def namespace(name: str, **properties: str) -> dict[str, Any]:
    return {"kind": "namespace", "namespace": name, "name": None, "properties": list(properties.items())}


def objects(*rows: dict[str, Any]) -> pa.Table:
    schema = {name: pa.string() for name in ("kind", "namespace", "name", "location", "metadata_location")}
    types = {**schema, "definition": pa.binary(), "properties": pa.map_(pa.string(), pa.string())}
    return pa.Table.from_pylist(list(rows), schema=pa.schema(types))


# Registration


def test_objects_are_registered_in_one_version_and_work_as_any_other(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("old")
        txn.create_table("old.t", ROWS).append(ROWS)
    metadata = lake.table("old.t").iceberg.metadata_location
    tables = [{"kind": "table", "namespace": "n", "name": f"t{i}", "metadata_location": metadata} for i in range(30)]
    done = lake.register(objects(*tables, view("n", "v"), namespace("n", owner="ops")), message="m", author="a")
    assert (done.version, done.namespaces, done.tables, done.views) == (2, 1, 30, 1)
    assert lake.namespace("n").properties == {"owner": "ops"}
    assert (lake.table("n.t3").type, lake.table("n.t3").scan().count()) == ("managed", 3)
    assert lake.view("n.v").representations == {"spark": "SELECT 1"}
    assert (lake.log(1)[0].message, len(lake.diff(1).added)) == ("m", 32)
    lake.table("n.t3").append(ROWS)
    lake.drop_table("n.t4")
    assert (lake.table("n.t3").scan().count(), lake.table("n.t5").scan().count()) == (6, 3)


def test_existing_definition_files_are_registered_unchanged(lake: tl.Lakehouse) -> None:
    lake.create_namespace("n")
    lake.create_view("n.v", "SELECT 7")
    location = lake._core.latest().locate("view", "n", "v")
    assert location is not None
    lake.register([{"kind": "view", "namespace": "n", "name": "same", "location": location}])
    assert lake.view("n.same").id == lake.view("n.v").id


def test_definition_files_that_may_have_been_collected_are_refused(lake: tl.Lakehouse) -> None:
    """Definition files that a garbage collection may have deleted cannot be registered."""
    lake.create_namespace("ns")
    path = _core.definition_path("view", "ns", "v", 1024)
    other = _core.definition_path("view", "ns", "w", 1024)
    lake._storage.put_many([(one, _core.encode_definition_file(one, VIEW)) for one in (path, other)])
    root = Path(lake.uri.removeprefix("file://"))
    hours = time.time() - 3600
    os.utime(root / path, (hours, hours))
    lake.register(objects({"kind": "view", "namespace": "ns", "name": "v", "location": path}))
    (root / "_queue").mkdir(exist_ok=True)
    garbage = root / f"_queue/{0:020d}-{uuid.uuid4()}.binpb"
    garbage.write_bytes(b"x")
    os.utime(garbage, (hours, hours))
    assert lake.maintenance.vacuum(grace="1 minute").version is not None
    os.utime(root / other, (hours, hours))

    before = lake.version
    # Files that the latest version references are not deleted.
    lake.register(objects({"kind": "view", "namespace": "ns", "name": "v2", "location": path}))
    collection = lake._core.begin_distributed_gc(0)
    collection.fence(False)
    with pytest.raises(tl.TransactionExpired, match="may be deleted by a garbage collection"):
        lake.register(objects({"kind": "view", "namespace": "ns", "name": "w", "location": other}))
    with pytest.raises(tl.TransactionExpired, match="is missing"):
        lake.register(objects({"kind": "view", "namespace": "ns", "name": "x", "location": f"{other[:-6]}0.binpb"}))
    assert (lake.version, lake.views("ns")) == (before + 2, ["ns.v", "ns.v2"])
    collection.end(True)
    lake.register(objects({"kind": "view", "namespace": "ns", "name": "w", "location": other}))
    assert lake.views("ns") == ["ns.v", "ns.v2", "ns.w"]


def test_registration_failed_names_every_object(lake: tl.Lakehouse) -> None:
    wrong = [
        {"kind": "table", "namespace": "n", "name": "nothing"},
        {"kind": "table", "namespace": "n", "name": "gone", "metadata_location": "file:///gone.metadata.json"},
        {"kind": "view", "namespace": "n", "name": "bad", "definition": b"\xff\xff"},
        {"kind": "chair", "namespace": "n", "name": "c"},
        {"kind": "view", "namespace": "n", "name": "with space ", "definition": VIEW},
    ]
    with pytest.raises(tl.RegistrationFailed) as caught:
        lake.register(objects(namespace("n"), view("n", "fine"), *wrong))
    assert [one.name for one in caught.value.objects] == ["n.nothing", "n.gone", "n.bad", "n.c", "n.with space "]
    kinds = [one.error_kind for one in caught.value.objects]
    assert kinds == ["invalid_argument", "invalid_location", "corrupt_file", "invalid_argument", "invalid_name"]
    assert "5 objects" in str(caught.value)
    assert lake.version == 0


def test_bytes_that_are_not_the_definition_of_the_object_are_refused(lake: tl.Lakehouse) -> None:
    """Bytes of another kind of definition, and of a table without metadata, are refused, although a protobuf message of
    one type often parses as another. Otherwise no reader could list the namespace or open the table."""
    with lake.transaction() as txn:
        txn.create_namespace("old")
        txn.create_table("old.t", ROWS).append(ROWS)
    location = lake.table("old.t").iceberg.metadata_location
    path = location.rpartition("/lake/")[2]

    id = lake.table("old.t").id

    def table(id: str = id, **options: Any) -> bytes:
        return serialize(new_table_def(id, **options))

    good = table(format_properties={"metadata_location": path, "manifest_list": "gone"}, properties={"a": "b"})
    federated = {"trinitylake.catalog": "c", "trinitylake.table": "a.b"}
    wrong = {
        "a view as a namespace": ("namespace", VIEW),
        "a table as a namespace": ("namespace", good),
        "a namespace as a view": ("view", serialize(new_namespace_def())),
        "a table as a view": ("view", good),
        "a view without a query": ("view", serialize(ViewDef(id=new_id()))),
        "a namespace as a table": ("table", serialize(new_namespace_def())),
        "a view as a table": ("table", VIEW),
        "a whole file": ("view", _core.encode_definition_file("a.binpb", VIEW)),
        "a damaged definition": ("table", good[:-3]),
        "a table without metadata": ("table", table()),
        "metadata that does not exist": ("table", table(format_properties={"metadata_location": path + "x"})),
        "metadata of another table": ("table", table(new_id(), format_properties={"metadata_location": path})),
        "metadata outside of the root": ("table", table(format_properties={"metadata_location": "../x"})),
        "an external table inside": (
            "table",
            table(table_type="external", format_properties={"metadata_location": location}),
        ),
        "a federated table with code": (
            "table",
            table(table_type="federated", format_properties={**federated, "py-catalog-impl": "x.Y"}),
        ),
    }
    rows = [
        {
            "kind": kind,
            "namespace": "n" if kind != "namespace" else f"n{number}",
            "name": f"x{number}",
            "definition": one,
        }
        for number, (kind, one) in enumerate(wrong.values())
    ]
    for row in rows:
        row["name"] = None if row["kind"] == "namespace" else row["name"]
    version = lake.version
    with pytest.raises(tl.RegistrationFailed) as caught:
        lake.register(objects(namespace("n"), *rows))
    assert len(caught.value.objects) == len(wrong)
    assert lake.version == version
    lake.register(
        objects(
            namespace("n"),
            {"kind": "table", "namespace": "n", "name": "t", "definition": good},
            {
                "kind": "table",
                "namespace": "n",
                "name": "f",
                "definition": table(table_type="federated", format_properties=federated),
            },
        )
    )
    assert (lake.table("n.t").count(), lake.table("n.t").schema.names, lake.table("n.f").type) == (
        3,
        ("id",),
        "federated",
    )
    assert lake.maintenance.fsck("all", data=True).is_sound


def test_objects_that_break_a_rule_are_refused_together(lake: tl.Lakehouse) -> None:
    lake.register(objects(namespace("n"), view("n", "v")))
    for rows, error in [
        ([view("n", "v")], tl.ObjectAlreadyExists),
        ([view("n", "w"), view("n", "w")], tl.ObjectAlreadyExists),
        ([view("nowhere", "v")], tl.ObjectNotFound),
    ]:
        with pytest.raises(error):
            lake.register(objects(view("n", "other"), *rows))
    with pytest.raises(tl.InvalidArgument, match="namespace"):
        lake.register({"kind": ["view"], "name": ["v"]})
    with pytest.raises(tl.InvalidArgument, match="null"):
        lake.register({"kind": ["view"], "namespace": ["n"], "name": ["v2"], "location": [None]})
    # Invalid paths, and the path of another kind of definition, are refused. They were accepted, and then no reader
    # could list the namespace.
    for path in ("", "../x", "/abs", "a//b", "a/", lake._core.latest().locate("namespace", "n")):
        for other in ({}, {"definition": [None]}):
            with pytest.raises(
                (tl.InvalidLocation, tl.RegistrationFailed), match="is not the path of the definition file"
            ):
                lake.register({"kind": ["view"], "namespace": ["n"], "name": ["v2"], "location": [path], **other})
    with pytest.raises(tl.InvalidArgument, match="colour"):
        lake.register({"kind": ["view"], "namespace": ["n"], "name": ["v"], "colour": ["red"]})
    assert (lake.version, lake.views("n")) == (1, ["n.v"])


def test_existing_objects_are_replaced_on_request(lake: tl.Lakehouse) -> None:
    lake.register(objects(namespace("n"), *(view("n", f"v{i:02d}") for i in range(20))))
    before = lake.view("n.v07")
    newer = serialize(new_view_def({"spark": "SELECT 2"}))
    lake.register(objects({**view("n", "v07"), "definition": newer}, view("n", "new")), replace=True)
    assert (before.representations, lake.view("n.v07").representations) == (
        {"spark": "SELECT 1"},
        {"spark": "SELECT 2"},
    )
    assert len(lake.views("n")) == 21
    assert [str(change) for change in lake.diff(1).changed] == ["view n.v07"]


def test_a_dry_run_reads_and_commits_nothing(lake: tl.Lakehouse) -> None:
    done = lake.register(objects(namespace("n"), view("n", "v")), dry_run=True)
    assert (done.version, done.namespaces, done.views) == (None, 1, 1)
    with pytest.raises(tl.RegistrationFailed):
        lake.register(objects({"kind": "view", "namespace": "n", "name": "v"}), dry_run=True)
    # A dry run reports the errors of the real run.
    with pytest.raises(tl.ObjectNotFound, match="namespace elsewhere does not exist"):
        lake.register(objects(namespace("n"), view("elsewhere", "v")), dry_run=True)
    with pytest.raises(tl.ObjectAlreadyExists, match="registered twice"):
        lake.register(objects(namespace("n"), view("n", "v"), view("n", "v")), dry_run=True)
    assert lake.version == 0
    lake.create_namespace("n")
    with pytest.raises(tl.ObjectAlreadyExists, match="namespace n exists"):
        lake.register(objects(namespace("n")), dry_run=True)
    assert lake.register(objects(namespace("n")), dry_run=True, replace=True).version is None
    assert lake.version == 1
    assert [path for path, _, _ in lake._storage.list("") if path.endswith(".binpb") and "view" in path] == []


# Import


def test_a_catalog_becomes_one_version_that_a_rollback_undoes(lake: tl.Lakehouse, catalog: SqlCatalog) -> None:
    lake.create_namespace("own")
    done = lake.import_catalog(catalog)
    assert done.version == lake.version == 2
    assert done.namespaces == ["empty", "sales", "sales.eu"]
    assert done.tables == lake.tables() == ["sales.items", "sales.orders", "sales.eu.orders"]
    properties = lake.namespace("sales").properties
    assert properties["owner"] == "ops"
    assert "location" not in properties
    table = lake.table("sales.eu.orders")
    assert (table.type, table.scan().count()) == ("external", 3)
    assert "other" in lake.log(1)[0].message
    lake.rollback(1)
    assert (lake.namespaces(), lake.tables()) == (["own"], [])


def test_tables_below_the_root_become_managed_and_views_are_imported(tmp_path: Path) -> None:
    """A lakehouse can import the tables of another lakehouse, whose files are below its own root, as managed tables."""
    source = tl.create(str(tmp_path / "lake" / "inner"), durability="none")
    with source.transaction() as txn:
        txn.create_namespace("n")
        txn.create_table("n.t", ROWS).append(ROWS)
        txn.create_view("n.v", "SELECT 1")
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    done = lake.import_catalog(TrinityLakeCatalog("source", root=source.uri))
    assert (done.tables, done.views) == (["n.t"], ["n.v"])
    assert lake.table("n.t").type == "managed"
    lake.table("n.t").append(ROWS)
    assert (lake.table("n.t").scan().count(), source.table("n.t").scan().count()) == (6, 3)
    assert lake.view("n.v").representations == {"spark": "SELECT 1"}


def test_an_import_can_be_repeated(lake: tl.Lakehouse, catalog: SqlCatalog) -> None:
    lake.import_catalog(catalog, namespaces=["sales.eu"])
    assert lake.tables() == ["sales.eu.orders"]
    for dry_run in (True, False):
        with pytest.raises(tl.ObjectAlreadyExists, match=r"sales\.eu\.orders exists"):
            lake.import_catalog(catalog, dry_run=dry_run)
    catalog.load_table("sales.eu.orders").append(ROWS)
    skipping = lake.import_catalog(catalog, existing="skip")
    assert skipping.skipped == ["namespace sales.eu", "table sales.eu.orders"]
    assert skipping.tables == ["sales.items", "sales.orders"]
    assert lake.table("sales.eu.orders").scan().count() == 3
    lake.import_catalog(catalog, existing="replace")
    assert lake.table("sales.eu.orders").scan().count() == 6
    again = lake.import_catalog(catalog, existing="skip")
    assert (again.version, again.tables, lake.version) == (None, [], 3)
    with pytest.raises(tl.InvalidArgument, match="overwrite"):
        lake.import_catalog(catalog, existing="overwrite")  # type: ignore[arg-type]


def test_an_import_names_every_unreadable_object_and_imports_none(
    lake: tl.Lakehouse, catalog: SqlCatalog, tmp_path: Path
) -> None:
    for name in ("sales.orders", "sales.eu.orders"):
        Path(catalog.load_table(name).metadata_location.removeprefix("file://")).unlink()
    for dry_run in (True, False):
        with pytest.raises(tl.RegistrationFailed) as caught:
            lake.import_catalog(catalog, dry_run=dry_run)
        assert sorted(one.name for one in caught.value.objects) == ["sales.eu.orders", "sales.orders"]
    assert lake.version == 0


# The command


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else result.stderr


def test_the_import_command(lake: tl.Lakehouse, catalog: SqlCatalog) -> None:
    where = [f"--property={name}={value}" for name, value in catalog.properties.items()]
    arguments = ["import", "other", "--root", lake.uri, "--property=type=sql", *where]
    dry = json.loads(run(*arguments, "--dry-run", "--json"))
    assert (dry["version"], dry["tables"]) == (None, ["sales.items", "sales.orders", "sales.eu.orders"])
    assert lake.version == 0
    assert "2 namespaces, 1 table" in run(*arguments, "--namespace", "sales.eu", "--namespace", "empty", "-m", "why")
    assert lake.log(1)[0].message == "why"
    done = json.loads(run(*arguments, "--existing", "skip", "--json"))
    assert (done["version"], done["skipped"]) == (2, ["namespace empty", "namespace sales.eu", "table sales.eu.orders"])
    failure = json.loads(run(*arguments, "--json", code=1))
    assert failure["error"]["kind"] == "object_already_exists"
    run("import", "other", "--root", lake.uri, "--property=type=nonsense", code=2)
