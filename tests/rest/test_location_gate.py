"""All locations in requests pass the location gate, whatever their field.

A view's `location`, `write.metadata.path` and `set-location` were not checked: a writer of one namespace wrote into
tables of another one, and into the internal folders `_expired/` and `_txn/`. Here the fields come from the models of
all requests, so a new field fails these tests until the gate handles it.
"""

from __future__ import annotations

import contextlib
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from pyiceberg.table.update import TableUpdate

import trinitylake as tl
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import COLUMNS, VIEW_VERSION, with_tables
from trinitylake.rest import RestServer
from trinitylake.rest.errors import RestError
from trinitylake.rest.files import signing
from trinitylake.rest.handlers import (
    body_parts,
    metrics,
    namespaces,
    scan_planning,
    table_changes,
    tables,
    transactions,
    view_changes,
    views,
)
from trinitylake.rest.security.locations import locations_of

TABLES, VIEWS = "/v1/namespaces/shop/tables", "/v1/namespaces/shop/views"

#: Words in the names of fields that may contain a location, or a map of properties.
LOCATION_WORDS = ("location", "path", "uri", "url", "manifest", "file", "folder", "properties", "updates")

Send = Callable[[Client, str, str], Answer]


def walked(kind: Any, path: str, seen: frozenset[Any] = frozenset()) -> Iterator[tuple[str, Any]]:
    """The fields of a model and of its nested models, with their paths."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType, list, tuple, typing.Annotated):
        for one in typing.get_args(kind):
            yield from walked(one, path, seen)
    elif isinstance(kind, type) and issubclass(kind, RootModel):
        yield from walked(kind.model_fields["root"].annotation, path, seen)
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
        action = kind.model_fields.get("action")
        names = [] if action is None else [*typing.get_args(action.annotation), action.default]
        start = next((f"{path}({one})" for one in names if isinstance(one, str)), path)
        for name, field in kind.model_fields.items():
            alias = field.alias or name
            yield f"{start}.{alias}", field.annotation
            yield from walked(field.annotation, f"{start}.{alias}", seen | {kind})


REQUEST_MODULES = (
    body_parts,
    metrics,
    namespaces,
    scan_planning,
    table_changes,
    tables,
    transactions,
    view_changes,
    views,
    signing,
)
MODELS: list[type[BaseModel]] = [
    one
    for module in REQUEST_MODULES
    for one in vars(module).values()
    if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__ == module.__name__
]


def location_fields() -> set[str]:
    """The paths of all fields of requests that may contain a location."""
    return {
        path
        for model in MODELS
        if "action" not in model.model_fields  # updates are found as fields of the changes
        for path, _ in walked(model, model.__name__)
        if any(word in path.rpartition(".")[2].lower() for word in LOCATION_WORDS)
        and not path.endswith("-size-in-bytes")
    }


def post(path: str, body: Callable[[str], Any]) -> Send:
    return lambda client, location, token: client("POST", path, body(location), token=token)


def update(action: str, **fields: Callable[[str], Any]) -> Send:
    def body(location: str) -> Any:
        values = {name.replace("_", "-"): made(location) for name, made in fields.items()}
        return {"requirements": [], "updates": [{"action": action, **values}]}

    return post(f"{TABLES}/orders", body)


def view_update(action: str, **fields: Callable[[str], Any]) -> Send:
    def body(location: str) -> Any:
        return {"updates": [{"action": action, **{name: made(location) for name, made in fields.items()}}]}

    return post(f"{VIEWS}/top", body)


def snapshot(location: str) -> Any:
    return {
        "snapshot-id": 7,
        "sequence-number": 99,
        "timestamp-ms": 9999999999999,
        "manifest-list": location,
        "summary": {"operation": "append"},
    }


def statistics(location: str) -> Any:
    return {
        "snapshot-id": 7,
        "statistics-path": location,
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }


def write_path(name: str) -> Callable[[str], dict[str, str]]:
    return lambda location: {name: location}


#: Requests with a location, by the field that contains it: `model.field` or `model…(action).field`.
REQUESTS: dict[str, list[Send]] = {
    "CreateTable.location": [
        post(TABLES, lambda location: {"name": "new", "schema": COLUMNS, "location": location}),
        post(TABLES, lambda location: {"name": "new", "schema": COLUMNS, "location": location, "stage-create": True}),
    ],
    "CreateTable.properties": [
        post(TABLES, lambda location, name=name: {"name": "new", "schema": COLUMNS, "properties": {name: location}})
        for name in ("write.metadata.path", "write.data.path", "write.object-storage.path", "write.unheard-of.path")
    ],
    "Register.metadata-location": [
        post("/v1/namespaces/shop/register", lambda location: {"name": "new", "metadata-location": location})
    ],
    "TableChange.updates(set-location).location": [update("set-location", location=str)],
    "TableChange.updates(set-properties).updates": [
        update("set-properties", updates=write_path(name))
        for name in ("write.metadata.path", "write.data.path", "write.folder-storage.path", "write.unheard-of.path")
    ],
    "TableChange.updates(add-snapshot).snapshot.manifest-list": [update("add-snapshot", snapshot=snapshot)],
    "TableChange.updates(set-statistics).statistics.statistics-path": [update("set-statistics", statistics=statistics)],
    "TableChange.updates(set-partition-statistics).partition-statistics.statistics-path": [
        update(
            "set-partition-statistics",
            partition_statistics=lambda location: {
                "snapshot-id": 7,
                "statistics-path": location,
                "file-size-in-bytes": 1,
            },
        )
    ],
    "CreateView.location": [
        post(
            VIEWS,
            lambda location: {"name": "new", "schema": COLUMNS, "view-version": VIEW_VERSION, "location": location},
        )
    ],
    "CreateView.properties": [
        post(
            VIEWS,
            lambda location, name=name: {
                "name": "new",
                "schema": COLUMNS,
                "view-version": VIEW_VERSION,
                "properties": {name: location},
            },
        )
        for name in ("write.metadata.path", "write.unheard-of.path")
    ],
    "RegisterView.metadata-location": [
        post("/v1/namespaces/shop/register-view", lambda location: {"name": "new", "metadata-location": location})
    ],
    "ViewChange.updates(set-location).location": [view_update("set-location", location=str)],
    "ViewChange.updates(set-properties).updates": [
        view_update("set-properties", updates=write_path("write.metadata.path"))
    ],
}

#: Fields without a location, each with the reason.
NO_LOCATION = {
    "CreateNamespace.properties": "text for people; a location in it is checked when a table names it",
    "UpdateProperties.updates": "the same",
    "Begin.properties": "kept in the log",
    "TableChange.updates(set-statistics).statistics.blob-metadata.properties": "about what is in the file",
    "SignRequest.uri": "a request to the store: `signing.check`, tested in test_signing.py",
    "PlanTableScanRequest.properties": "kept in memory for the plan",
}


def end(path: str) -> str:
    """The path of a field, without the outer models that only contain other models."""
    return path.replace("CommitTransaction.table-changes", "TableChange")


def test_every_field_with_a_location_is_tested() -> None:
    found = {end(path) for path in location_fields()}
    known = set(REQUESTS) | set(NO_LOCATION)
    carriers = {
        path
        for path in found
        if not path.endswith((".updates", ".snapshot", ".statistics", ".partition-statistics", ".schema"))
        or "(set-properties).updates" in path
        or path in known
    }
    assert carriers - known == set(), (
        "add requests with this field to REQUESTS, or the reason why it has no location to NO_LOCATION"
    )
    assert set(REQUESTS) <= found, "a field in REQUESTS does not exist any more"


def test_an_update_of_an_unknown_kind_is_refused() -> None:
    kinds = typing.get_args(typing.get_args(TableUpdate)[0])
    assert len(kinds) > 15
    for kind in kinds:
        made = kind.model_construct(action="x", snapshot=None, statistics=None, partition_statistics=None)
        with contextlib.suppress(AttributeError):  # some locations are of files that this class lacks
            list(locations_of([made]))
    unknown: Any = types.SimpleNamespace(action="set-encryption-location")
    with pytest.raises(RestError, match="does not know"):
        list(locations_of([unknown]))


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Tables in two namespaces, and a view."""
    with_tables(lake, "shop.orders", "hr.orders").create_view("shop.top", "SELECT 1")
    return lake


@pytest.fixture
def server(shop: tl.Lakehouse, tokens: Path) -> Iterator[RestServer]:
    with running(shop, token_file=tokens) as server:
        yield server


def folders(lake: tl.Lakehouse) -> dict[str, str]:
    """Locations outside of the shop's tables, by a description."""
    root = lake.uri
    theirs = lake.table("hr.orders").location
    return {
        "another table": theirs,
        "a file of another table": f"{theirs}/metadata/snap.avro",
        "another namespace": f"{root}hr/new",
        "beside its own": lake.table("shop.orders").location + "-more",
        "the namespace": f"{root}shop",
        "boundary": f"{root}_expired/00000000000000000009",
        "saved transactions": f"{root}_txn/x",
        "the queue": f"{root}_queue/x/metadata",
        "the root": root,
        "above the root": f"{root}../x",
        "around": f"{root}shop/../hr/new",
        "elsewhere": "file:///tmp/elsewhere",
        "another store": "s3://bucket/x",
        "a name of the net": "http://169.254.169.254/x",
        "a double slash": f"{root}/x",
        "a longer root": f"{root.rstrip('/')}-other/x",
        "another host": f"FILE://evil{root.removeprefix('file://')}x",
        "an internal folder": f"{root}_x/t",
    }


def files(lake: tl.Lakehouse) -> set[str]:
    root = Path(lake.uri.removeprefix("file://"))
    return {str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()}


def test_writer_of_one_namespace_reaches_no_other_location(server: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(server)
    before, version = files(shop), shop.version
    for field in REQUESTS:
        for place, location in folders(shop).items():
            for send in REQUESTS[field]:
                answer = send(client, location, WALT)
                assert answer.code in (400, 403), (place, answer)
        assert shop.version == version, field
        assert files(shop) == before, field


def test_no_principal_reaches_the_folders_of_the_lakehouse(server: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(server)
    before = {one for one in files(shop) if one.startswith("_")}
    places = folders(shop)
    for field in [one for one in REQUESTS if "register" not in one.lower()]:
        for place in ("boundary", "saved transactions", "the queue", "above the root", "elsewhere", "another store"):
            for send in REQUESTS[field]:
                answer = send(client, places[place], ROOT)
                assert answer.code in (400, 403), (place, answer)
        assert {one for one in files(shop) if one.startswith("_")} == before, field


@pytest.mark.parametrize(
    "name", ["py-io-impl", "io-impl", "write.location-provider.impl", "encryption.kms-impl", "write.unheard-of.impl"]
)
def test_properties_that_name_code_are_refused(server: RestServer, shop: tl.Lakehouse, name: str) -> None:
    """Every property whose value names code to load is refused, also properties of newer Iceberg versions, such as
    `encryption.kms-impl`."""
    client = Client(server)
    send = update("set-properties", updates=lambda value: {name: value})
    for token in (WALT, ROOT):
        assert send(client, "os.system", token).code == 400
    assert (
        post(TABLES, lambda value: {"name": "n", "schema": COLUMNS, "properties": {name: value}})(
            client, "x", ROOT
        ).code
        == 400
    )
    column = {"write.metadata.metrics.column.a.impl": "none", "write.metadata.metrics.column.file.path": "none"}
    assert update("set-properties", updates=lambda _: column)(client, "", WALT).code == 200


def test_a_missing_location_or_file_is_refused(server: RestServer, shop: tl.Lakehouse) -> None:
    client, before = Client(server), shop.version
    for location in ("", f"{shop.uri}none.metadata.json", f"{shop.uri}x.bin"):
        for kind in ("register", "register-view"):
            body = {"name": "r", "metadata-location": location}
            assert client("POST", f"/v1/namespaces/shop/{kind}", body, token=ROOT).code == 400, location
    assert update("set-location", location=str)(client, "", ROOT).code == 400
    assert shop.version == before


def test_own_locations_are_accepted(server: RestServer, shop: tl.Lakehouse) -> None:
    client = Client(server)
    table = shop.table("shop.orders").location
    inside = {"write.data.path": f"{table}/rows", "write.metadata.path": f"{table}/metadata"}
    assert update("set-properties", updates=lambda _: inside)(client, "", WALT).code == 200
    assert update("set-location", location=str)(client, table, WALT).code == 200
    view = client("GET", f"{VIEWS}/top", token=WALT).body["metadata"]["location"]
    assert view_update("set-location", location=str)(client, view, WALT).code == 200
    inside = {"write.metadata.path": f"{view}/more"}
    assert view_update("set-properties", updates=lambda _: inside)(client, "", WALT).code == 200
    elsewhere = f"{shop.uri}views/top"
    assert view_update("set-location", location=str)(client, elsewhere, ROOT).code == 200
    assert view_update("set-location", location=str)(client, elsewhere, RITA).code == 403
