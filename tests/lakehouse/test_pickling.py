"""Pickles of handles: a handle is opened again where it is unpickled, and a pickle has no secret unless allowed."""

from __future__ import annotations

import copyreg
import io
import multiprocessing
import pickle
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import s3_server
import trinitylake as tl
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, S3Server
from trinitylake import _core
from trinitylake.base import pickling
from trinitylake.iceberg import TrinityLakeCatalog
from trinitylake.iceberg_storage.external_tables import load_external
from waiting import PATIENCE_SECONDS

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
KEYS = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": "sent", "region": "r"}
SECRETS = [ACCESS_KEY, SECRET_KEY, SESSION_TOKEN]
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.serve() as server:
        yield server


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    return filled(tl.create(tmp_path / "lake", durability="none"))


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "_ALLOWED", set())
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def filled(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Version 1 has `nyc.t` with three rows and the view `nyc.v`."""
    with lake.transaction() as txn:
        txn.create_namespace("nyc", {"owner": "ops"})
        txn.create_table("nyc.t", ROWS).append(ROWS)
        txn.create_view("nyc.v", "SELECT 1", dialect="duckdb")
    return lake


def again(handle: Any) -> Any:
    return pickle.loads(pickle.dumps(handle))


def ids(table: Any) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


# What arrives


def test_unpickled_lakehouse_has_the_latest_version_and_is_writable(lake: tl.Lakehouse) -> None:
    """A pickled handle can be used in another process, where it reads the latest version and can write."""
    arrived = again(lake)
    lake.create_namespace("later")
    assert (arrived.uri, arrived.namespaces()) == (lake.uri, ["later", "nyc"])
    arrived.table("nyc.t").append(ROWS)
    assert ids(lake.table("nyc.t")) == [1, 1, 2, 2, 3, 3]


def test_pickled_handle_keeps_its_options(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = _core.Lakehouse.open

    class Spy:
        open = staticmethod(lambda *arguments: asked.append(arguments) or real(*arguments))

    opened = tl.open(lake.uri, durability="none", cache_size_bytes=12345)
    data = pickle.dumps(opened)
    monkeypatch.setattr("trinitylake.lakehouse.lakehouse._core.Lakehouse", Spy)
    pickle.loads(data)
    assert [(one[0].__getnewargs__()[2], one[1]) for one in asked] == [("none", 12345)]


def test_unpickled_handles_of_one_lakehouse_share_state(lake: tl.Lakehouse) -> None:
    """All handles of one lakehouse that a process unpickles share group commits. Otherwise the threads of ten tasks
    would conflict with each other."""
    one, other = again(lake), again(lake)
    assert one is other
    assert one is not lake
    del one, other
    assert again(tl.open(lake.uri, durability="none", cache_size_bytes=1)) is not again(lake)


def test_unpickled_version_is_the_same_version(lake: tl.Lakehouse) -> None:
    frozen = lake.at(1)
    lake.table("nyc.t").append(ROWS)
    arrived = again(frozen)
    assert (arrived.version, arrived.created_at) == (1, frozen.created_at)
    assert ids(arrived.table("nyc.t")) == [1, 2, 3]


def test_unpickled_version_after_expiry_needs_a_tag(lake: tl.Lakehouse) -> None:
    lake.tags.create("kept", version=1)
    gone, kept = lake.at(0), lake.at("tag:kept")
    data = pickle.dumps(gone)
    for _ in range(3):
        lake.table("nyc.t").append(ROWS)
    lake.maintenance.expire(keep=1)
    with pytest.raises(tl.VersionExpired):
        pickle.loads(data)
    assert ids(again(kept).table("nyc.t")) == [1, 2, 3]


def test_unpickled_table_has_the_state_that_it_showed(lake: tl.Lakehouse) -> None:
    table = lake.table("nyc.t")
    lake.table("nyc.t").append(ROWS)
    arrived = again(table)
    assert (arrived.name, arrived.id, ids(arrived)) == ("nyc.t", table.id, [1, 2, 3])
    arrived.refresh()
    assert ids(arrived) == [1, 1, 2, 2, 3, 3]
    arrived.append(ROWS)
    assert len(ids(lake.table("nyc.t"))) == 9
    frozen = again(lake.at(1).table("nyc.t"))
    with pytest.raises(tl.InvalidArgument, match="belongs to version 1"):
        frozen.append(ROWS)


def test_unpickled_scan_has_its_filter_and_rows(lake: tl.Lakehouse) -> None:
    table = lake.table("nyc.t")
    scan = table.scan("id > 1", columns=["id"], limit=2)
    table.append(ROWS)
    arrived = again(scan)
    assert (sorted(arrived.to_arrow()["id"].to_pylist()), repr(arrived)) == ([2, 3], repr(scan))
    assert again(lake.at(1).table("nyc.t").scan()).count() == 3


def test_namespaces_views_and_logs_can_be_pickled(lake: tl.Lakehouse) -> None:
    view = again(lake.view("nyc.v"))
    assert (view.name, view.sql, view.dialect) == ("nyc.v", "SELECT 1", "duckdb")
    assert again(lake.namespace("nyc")) == lake.namespace("nyc")
    assert list(again(lake.log(None))) == list(lake.log(None))


def test_files_and_iceberg_tables_can_be_pickled(lake: tl.Lakehouse) -> None:
    iceberg = lake.table("nyc.t").iceberg
    location = iceberg.metadata_location
    file_io = again(iceberg.io)
    assert file_io.new_input(location).open().read() == iceberg.io.new_input(location).open().read()
    assert len(again(iceberg.io.new_input(location))) == len(iceberg.io.new_input(location))
    assert again(iceberg).scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("bound", ["root", "lakehouse", "version", "timestamp"])
def test_unpickled_catalog_keeps_its_binding(lake: tl.Lakehouse, bound: str) -> None:
    catalog = {
        "root": lambda: TrinityLakeCatalog("mine", root=lake.uri),
        "lakehouse": lambda: TrinityLakeCatalog("mine", lakehouse=lake),
        "version": lambda: TrinityLakeCatalog("mine", root=lake.uri, version="1"),
        "timestamp": lambda: TrinityLakeCatalog("mine", root=lake.uri, timestamp=lake.at().created_at),
    }[bound]()
    table = catalog.load_table("nyc.t")
    lake.table("nyc.t").append(ROWS)
    arrived = again(catalog)
    newest = bound in ("root", "lakehouse")
    assert (arrived.name, ids(arrived.load_table("nyc.t"))) == ("mine", [1, 1, 2, 2, 3, 3] if newest else [1, 2, 3])
    assert ids(again(table)) == [1, 2, 3]
    if newest:
        again(table).append(ROWS)
        assert len(ids(lake.table("nyc.t"))) == 9


def test_external_table_can_be_pickled(lake: tl.Lakehouse, tmp_path: Path) -> None:
    other = filled(tl.create(tmp_path / "other"))
    TrinityLakeCatalog("mine", lakehouse=lake).register_table(
        "nyc.there", other.table("nyc.t").iceberg.metadata_location
    )
    assert ids(again(lake.table("nyc.there"))) == [1, 2, 3]
    assert again(lake.table("nyc.there").scan("id = 2")).to_arrow()["id"].to_pylist() == [2]
    assert again(lake.table("nyc.there").iceberg).scan().to_arrow().num_rows == 3


# What does not travel


def test_pickling_an_open_transaction_names_the_alternative(lake: tl.Lakehouse) -> None:
    """The error for pickling an open transaction names `save`, with which another process can continue."""
    txn = lake.begin(id="hand-over")
    table = txn.table("nyc.t")
    table.append(ROWS)
    catalog = TrinityLakeCatalog(lakehouse=lake, transaction=txn)
    held = [txn, table, table.scan(), table.iceberg, catalog, catalog.load_table("nyc.t"), {"deep": [txn]}, txn._core]
    for handle in held:
        with pytest.raises(tl.InvalidArgument, match=r"save\(\) here and lake.resume"):
            pickle.dumps(handle)
    txn.save()
    assert again(lake).resume("hand-over").commit() == lake.version
    assert len(ids(lake.table("nyc.t"))) == 6


def test_pickling_a_lakehouse_in_memory_is_refused(tmp_path: Path) -> None:
    lake = filled(tl.create(f"memory://{uuid.uuid4()}"))
    assert ids(again(lake).table("nyc.t")) == [1, 2, 3]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(reopened_here, pickle.dumps(lake))
        with pytest.raises(tl.NotALakehouse, match="a lakehouse in memory exists in one process"):
            there.result(PATIENCE_SECONDS)


def reopened_here(data: bytes) -> bool:
    return pickle.loads(data) is not None


def test_unpickling_a_deleted_lakehouse_raises(lake: tl.Lakehouse, tmp_path: Path) -> None:
    data = pickle.dumps(lake)
    (tmp_path / "lake").rename(tmp_path / "away")
    with pytest.raises(tl.NotALakehouse, match="lake"):
        pickle.loads(data)


def test_a_pickle_of_another_release_is_refused_before_anything_is_opened(lake: tl.Lakehouse) -> None:
    """A pickle of another release is refused before anything is opened. A worker with an older release misinterpreted
    the options of a newer pickle."""

    class Later(pickle.Pickler):
        def reducer_override(self, one: Any) -> Any:
            if isinstance(one, _core.Storage):
                return pickling.opened_storage, (pickling.PICKLE_FORMAT + 1, {"root": "what comes later"})
            return NotImplemented

    for handle in (lake, lake.at(), lake.table("nyc.t"), lake.table("nyc.t").scan()):
        file = io.BytesIO()
        Later(file).dump(handle)
        with pytest.raises(tl.UnsupportedVersion, match="the same release"):
            pickle.loads(file.getvalue())


def test_a_pickle_of_this_form_stays_readable(lake: tl.Lakehouse) -> None:
    """A pickle of the present format stays readable. If the literal bytes of this test must change, `PICKLE_FORMAT`
    must change, too."""
    written = (
        f"\x80\x04ctrinitylake.lakehouse.lakehouse\nreopened_lakehouse\n(ctrinitylake.base.pickling\nopened_storage\n"
        f"(K\x01V{lake.uri}\nNV{'none'}\n]tRNtR."
    )
    assert pickle.loads(written.encode("latin-1")).namespaces() == ["nyc"]


# Secrets


def handles(lake: tl.Lakehouse, options: dict[str, str]) -> list[Any]:
    catalog = TrinityLakeCatalog("mine", root=lake.uri, storage_options=options)
    by_properties = TrinityLakeCatalog(
        "mine", root=lake.uri, **{f"storage.{name}": one for name, one in options.items()}
    )
    table = lake.table("nyc.t")
    return [
        lake,
        lake.at(),
        table,
        lake.at().table("nyc.t"),
        table.scan(),
        table.iceberg,
        table.iceberg.io,
        catalog,
        by_properties,
        catalog.load_table("nyc.t"),
        lake._storage,
        lake._core,
    ]


def s3_lake(server: S3Server, **more: Any) -> tl.Lakehouse:
    return filled(tl.create(f"s3://{server.new_bucket()}/lake", storage_options=server.storage_options, **more))


def found_in(data: bytes) -> list[str]:
    return [
        one
        for one in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN)
        if one.encode() in data or one.encode("utf-16-le") in data
    ]


def test_pickle_with_a_secret_argument_is_refused(server: S3Server) -> None:
    for handle in handles(s3_lake(server), server.storage_options):
        with pytest.raises(tl.InvalidArgument, match="is a secret that no environment variable contains") as caught:
            pickle.dumps(handle)
        assert not found_in(str(caught.value).encode())


def test_secrets_of_the_environment_are_read_at_unpickling(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION_TOKEN)
    monkeypatch.setenv("OUR_OWN_SECRET", SECRET_KEY)
    lake = s3_lake(server)
    for handle in handles(lake, server.storage_options):
        data = pickle.dumps(handle)
        assert not found_in(data), type(handle)
        assert b"OUR_OWN_SECRET" in data
        assert pickle.dumps(pickle.loads(data))
    data = pickle.dumps(lake)
    assert ids(pickle.loads(data).table("nyc.t")) == [1, 2, 3]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(count_rows, lake.table("nyc.t")).result(PATIENCE_SECONDS) == 3
    monkeypatch.delenv("OUR_OWN_SECRET")
    with pytest.raises(tl.InvalidArgument, match="'OUR_OWN_SECRET' of the process that pickled it"):
        pickle.loads(data)


def test_pickles_have_secrets_only_if_allowed(server: S3Server) -> None:
    lake = s3_lake(server, pickle_secrets=True)
    for handle in handles(lake, server.storage_options):
        assert found_in(pickle.dumps(handle)) == SECRETS, type(handle)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        # The lakehouse is pickled again in a process that has only the first pickle.
        assert found_in(pool.submit(pickled_there, lake).result(PATIENCE_SECONDS)) == [
            ACCESS_KEY,
            SECRET_KEY,
            SESSION_TOKEN,
        ]


def pickled_there(lake: tl.Lakehouse) -> bytes:
    return pickle.dumps(lake)


def test_permission_for_secrets_belongs_to_one_lakehouse(server: S3Server) -> None:
    s3_lake(server, pickle_secrets=True)
    other = _core.Storage("s3://bucket/lake", {**KEYS, "aws_secret_access_key": "another"})
    with pytest.raises(tl.InvalidArgument, match="a secret"):
        pickle.dumps(other)


def test_variable_with_an_equal_value_is_not_used_for_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle names an environment variable only if the variable has the name of a secret. The variable USER can have
    the value of a secret by chance, and differs in other processes."""
    monkeypatch.setenv("USER", "chance")
    with pytest.raises(tl.InvalidArgument, match="no environment variable"):
        pickling.pickled_options({"aws_secret_access_key": "chance"})
    monkeypatch.setenv("Z_SECRET", "chance")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "chance")
    assert pickling.pickled_options({"aws_secret_access_key": "chance"}) == {
        "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY",)
    }


def test_a_password_in_an_address_is_a_secret() -> None:
    with pytest.raises(tl.InvalidArgument, match="proxy_url"):
        pickling.pickled_options({"proxy_url": "http://user:password@proxy:8080"})
    options = {"proxy_url": "http://proxy:8080", "region": "env:r", "endpoint": "@x"}
    assert pickling.unpickled_options(pickling.pickled_options(options)) == options


def test_unpickling_reads_the_local_configuration_of_pyiceberg(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__ROOT", lake.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__S3__SECRET_ACCESS_KEY", "very secret")
    catalog = TrinityLakeCatalog("mine")
    data = pickle.dumps(catalog)
    assert b"very secret" not in data
    assert ids(pickle.loads(data).load_table("nyc.t")) == [1, 2, 3]


def test_the_settings_for_external_tables_are_secrets_too(tmp_path: Path) -> None:
    other = filled(tl.create(tmp_path / "other"))
    settings = {"s3.secret-access-key": "very secret", "s3.region": "r"}
    table = load_external(other.table("nyc.t").iceberg.metadata_location, settings)
    with pytest.raises(tl.InvalidArgument, match=r"s3\.secret-access-key"):
        pickle.dumps(table)
    pickling.allow_secrets(settings)
    assert again(table).io.properties == settings


def test_pickles_for_executors_have_secrets() -> None:
    """Pickles for Spark's executors contain secrets, which executors need for access to the storage."""
    options = KEYS
    carried = again(pickling.StorageForTasks(_core.Storage("s3://bucket/lake", options)))
    assert carried.storage.__getnewargs__()[1] == options
    with pytest.raises(tl.InvalidArgument, match="a secret"):
        pickle.dumps(carried.storage)


def test_every_class_of_the_core_that_is_open_has_a_rule() -> None:
    """Every class of the core with an open resource has a rule for pickling, so that none can leak secrets."""
    assert {_core.Storage, _core.Lakehouse, _core.Transaction} <= set(copyreg.dispatch_table)


# Other processes


def count_rows(table: Any) -> int:
    return int(table.scan().to_arrow().num_rows)


def append_one(lake: tl.Lakehouse, number: int) -> int:
    lake.table("nyc.t").append({"id": [number], "name": [str(number)]})
    return lake.version


def use(handle: Any) -> int:
    """The number of rows of `nyc.t`, read through any handle."""
    if hasattr(handle, "load_table"):
        handle = handle.load_table("nyc.t")
    elif hasattr(handle, "tables"):
        handle = handle.table("nyc.t")
    return count_rows(handle) if hasattr(handle, "scan") else int(handle.to_arrow().num_rows)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_pool_of_processes_takes_every_handle(lake: tl.Lakehouse, method: str) -> None:
    table = lake.table("nyc.t")
    sent: list[Any] = [lake, lake.at(), table, table.scan(), table.iceberg, TrinityLakeCatalog("mine", lakehouse=lake)]
    context = multiprocessing.get_context(method)
    processes = 2 if method == "fork" else 1  # each of the others imports everything again
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        assert list(pool.map(use, sent, timeout=PATIENCE_SECONDS)) == [3] * len(sent)
        assert len(set(pool.map(append_one, [lake] * 6, range(10, 16), timeout=PATIENCE_SECONDS))) >= 1
    with context.Pool(processes) as pool:
        assert pool.map(use, [lake, table.scan()]) == [9, 3]
    assert ids(lake.table("nyc.t")) == [1, 2, 3, *range(10, 16)]


def test_an_error_of_a_pool_worker_reaches_the_caller(lake: tl.Lakehouse) -> None:
    """An error of a pool worker reaches the caller, although the pool pickles in another thread than the one that waits
    for the result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        with pytest.raises(tl.InvalidArgument, match=r"save\(\)"):
            pool.submit(use, lake.begin()).result(PATIENCE_SECONDS)
        assert pool.submit(use, lake).result(PATIENCE_SECONDS) == 3


def test_a_forked_child_uses_handles_unpickled_before_the_fork(lake: tl.Lakehouse) -> None:
    arrived = again(lake)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(use, arrived).result(PATIENCE_SECONDS) == 3
        pool.submit(append_one, arrived, 4).result(PATIENCE_SECONDS)
    assert ids(arrived.table("nyc.t")) == [1, 2, 3, 4]


CLOSED: list[Callable[[tl.Lakehouse], Any]] = [
    lambda lake: lake.table("nyc.t").scan().to_arrow(),
    lambda lake: lake.log(),
    lambda lake: lake.diff(0),
]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_works(lake: tl.Lakehouse, protocol: int) -> None:
    for handle in (lake, lake.at(), lake.table("nyc.t"), lake.table("nyc.t").scan(), lake.view("nyc.v")):
        assert type(pickle.loads(pickle.dumps(handle, protocol))) is type(handle)
    for value in CLOSED:
        assert pickle.loads(pickle.dumps(value(lake), protocol)) == value(lake)


def test_a_key_that_encrypts_files_is_a_secret(tmp_path: Path) -> None:
    """The key of SSE-C is treated as a secret in pickles."""
    tl.create(tmp_path / "lake")
    key = "c2VjcmV0LWtleS1vZi0zMi1ieXRlcy1pbi1iYXNlNjQh"
    lake = tl.open(tmp_path / "lake", storage_options={"aws_sse_customer_key_base64": key})
    with pytest.raises(tl.InvalidArgument, match="aws_sse_customer_key_base64 cannot be pickled"):
        pickle.dumps(lake)
