"""Folders without read or write permission, a full disk, and too few file descriptors: a typed error, and no lost
data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from test_bad_input import folder, unchanged

import trinitylake as tl
from trinitylake import core

ROWS = pa.table({"id": [1, 2, 3]})
NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Run as an unprivileged user, because permissions do not restrict root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def reachable_lake() -> Iterator[tl.Lakehouse]:
    """A lakehouse in a folder whose parents every user may enter.

    Lazy imports are done before: the package may be in a folder that only root may enter, and then a test failed with
    an ImportError.
    """
    used = tl.create(f"memory://{uuid.uuid4()}")
    used.create_namespace("n")
    used.create_table("n.t", ROWS).append(ROWS)
    used.maintenance.expire(before=1)
    path = Path(f"/tmp/trinitylake-{uuid.uuid4()}")
    lake = tl.create(str(path), durability="none")
    lake.create_namespace("nyc", {"owner": "ops"})
    lake.create_view("nyc.v", "SELECT 1")
    yield lake
    subprocess.run(["chmod", "-R", "u+rwx", str(path)], check=True)
    subprocess.run(["rm", "-r", str(path)], check=True)


def test_a_read_only_folder_denies_every_write_and_no_read(reachable_lake: tl.Lakehouse) -> None:
    lake, path = reachable_lake, folder(reachable_lake)
    subprocess.run(["chmod", "-R", "a=rX", str(path)], check=True)
    with unchanged(lake), without_rights():
        for call in (
            lambda: lake.create_namespace("new"),
            lambda: lake.drop_view("nyc.v"),
            lambda: lake.create_table("nyc.t", ROWS),
            lambda: lake.rollback(1),
            lambda: lake.maintenance.expire(before=1),
            lambda: tl.create(f"{path}/inner"),
        ):
            with pytest.raises(tl.PermissionDenied, match=str(path)):
                call()
        assert lake.namespace("nyc").properties == {"owner": "ops"}


def test_files_that_may_not_be_read_are_permission_denied_and_not_absent(reachable_lake: tl.Lakehouse) -> None:
    """An unreadable lakehouse must not look like a missing one: otherwise a user would create a new one over it."""
    lake, path = reachable_lake, folder(reachable_lake)
    subprocess.run(["chmod", "-R", "a+rX", str(path)], check=True)
    root = path / core.root_path(2)
    root.chmod(0)
    with without_rights():
        with pytest.raises(tl.PermissionDenied, match=root.name):
            tl.open(str(path))
        assert lake.at(1).namespaces() == ["nyc"]
    root.chmod(0o644)
    path.chmod(0)
    with without_rights():
        for call in (tl.open, tl.create):
            with pytest.raises(tl.PermissionDenied, match=str(path)):
                call(str(path))
    path.chmod(0o755)
    assert tl.open(str(path)).version == 2


FULL_DISK = """
import resource, signal, sys
import pyarrow as pa
import trinitylake as tl

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
lake = tl.create(sys.argv[1], durability=sys.argv[2])
lake.create_namespace("nyc")
lake.create_table("nyc.t", pa.table({"id": [1]})).append({"id": [1]})
version = lake.version

def files():
    return {path for path, _, _ in lake._storage.list("") if path != "_latest_hint.txt"}

def fill(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def refused(call):
    try:
        call()
    except tl.StorageError as error:
        assert sys.argv[1] in str(error), error
        return
    raise SystemExit("not refused")

# Sizes at which nothing fits, only a definition fits, and only data does not fit. Written files are removed again.
before = files()
for size in (0, 100, 1000):
    fill(size)
    refused(lambda: lake.create_namespace("full"))
    refused(lambda: lake.table("nyc.t").append({"id": list(range(5000))}))
    refused(lambda: lake.rollback(1))
    assert files() == before, (size, files() - before)
    fill(resource.RLIM_INFINITY)
    for handle in (lake, tl.open(sys.argv[1])):
        assert (handle.version, handle.namespaces()) == (version, ["nyc"]), (size, handle.version)
        assert handle.table("nyc.t").scan().to_arrow()["id"].to_pylist() == [1]
# There is room again.
lake.create_namespace("room")
lake.table("nyc.t").append({"id": [2]})
fresh = tl.open(sys.argv[1])
assert fresh.namespaces() == ["nyc", "room"]
assert sorted(fresh.table("nyc.t").scan().to_arrow()["id"].to_pylist()) == [1, 2]
assert [entry.version for entry in fresh.log(None)] == list(range(version + 2, -1, -1))
print("whole")
"""


FULL_DISK_OF_UPKEEP = """
import os, resource, shutil, signal, sys, time
from pathlib import Path
import trinitylake as tl

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
root, mirror = sys.argv[1], sys.argv[2]
lake = tl.create(root, durability="none", txn_ttl_millis=1)
lake.create_namespace("nyc")
lake.create_table("nyc.t", {"id": "bigint"})
for number in range(4):
    lake.table("nyc.t").append({"id": [number]})
lake.export(mirror, durability="none")
lake.table("nyc.t").append({"id": [4]})
lake.maintenance.expire(keep=1)
hour_ago = time.time() - 3600
for path in Path(root).rglob("*"):
    if path.is_file():
        os.utime(path, (hour_ago, hour_ago))

def fill(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def ids(where):
    fresh = tl.open(where, durability="none")
    assert fresh.maintenance.fsck("all", files=True).is_sound
    return sorted(fresh.table("nyc.t").scan().to_arrow()["id"].to_pylist())

def files():
    return {path for path, _, _ in lake._storage.list("") if path != "_latest_hint.txt"}

before = files()
for size in (0, 100, 1000):
    for work in (lake.maintenance.vacuum, lambda: lake.export(mirror, durability="none")):
        fill(size)
        try:
            work()
        except (tl.StorageError, OSError):
            pass
        else:
            raise SystemExit(f"not refused: {size}")
        finally:
            fill(resource.RLIM_INFINITY)
    assert before - files() == set(), "without its fence a collection deletes nothing"
    assert ids(root) == [0, 1, 2, 3, 4]
    assert ids(mirror) == [0, 1, 2, 3]
assert lake.maintenance.vacuum().total_deleted.files > 0
lake.export(mirror, durability="none")
assert ids(root) == ids(mirror) == [0, 1, 2, 3, 4]
print("whole")
"""


def test_a_full_disk_ends_a_vacuum_and_an_export_without_any_loss(tmp_path: Path) -> None:
    """A vacuum that cannot write its fence deletes no files."""
    command = [sys.executable, "-c", FULL_DISK_OF_UPKEEP, str(tmp_path / "lake"), str(tmp_path / "mirror")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stdout + done.stderr


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_a_full_disk_is_a_storage_error_and_leaves_the_lakehouse_whole(tmp_path: Path, durability: str) -> None:
    """A limit on the size of files simulates the full disk: a write stops in the middle."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "lake"), durability]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stdout + done.stderr
    assert not [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and path.stat().st_size in (0, 100)]


NO_DESCRIPTORS = """
import os, resource, sys
import trinitylake as tl

lake = tl.create(sys.argv[1], durability="none")
lake.create_namespace("nyc")
tl.open(sys.argv[1]).namespaces()  # everything is loaded
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
refused = 0
reading = lambda: lake._storage.get("_latest_hint.txt")
for call in (lambda: lake.create_namespace("new"), lambda: tl.open(sys.argv[1]), reading):
    try:
        call()
    except tl.StorageError as error:
        assert sys.argv[1] in str(error), error
        refused += 1
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
for one in held:
    os.close(one)
assert refused == 3, refused
assert (lake.version, lake.namespaces()) == (1, ["nyc"])
lake.create_namespace("new")
print("whole")
"""


def test_a_process_without_descriptors_gets_a_storage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stdout + done.stderr
