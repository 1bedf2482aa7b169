"""Golden lakehouses as files: packing one, unpacking one, and telling what a lakehouse holds."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import trinitylake as tl
from trinitylake import _core
from trinitylake.definitions.sql_types import parse_type

FOLDER = Path(__file__).resolve().parent
#: Its last root holds definitions whose files do not exist.
HELD_DEFINITIONS = "held_definitions"


def names() -> list[str]:
    """All golden lakehouses with a long history, such as `0.1/order_3`."""
    return sorted(str(path.relative_to(FOLDER))[: -len(".tar.gz")] for path in FOLDER.glob("*/order_*.tar.gz"))


def held_definitions(system: dict[str, str]) -> dict[str, bytes]:
    """The definitions in the system rows of a root: path to bytes (format, section 4)."""
    lines = (line.split("\t") for line in system.get("definitions_inline", "").splitlines())
    return {path: bytes.fromhex(data) for path, data in lines}


def expectation(name: str) -> dict[str, Any]:
    """What the writer knew about a golden lakehouse when it wrote it; see `describe`."""
    expected: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    for one in (one for version in expected["versions"] for one in version["objects"]):  # spelled as in that release
        if "columns" in one:
            one["columns"] = [[name, str(parse_type(type))] for name, type in one["columns"]]
    return expected


def pack(files: dict[str, bytes]) -> bytes:
    """A tar.gz of files; equal files give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=9) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path, data in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def unpack(name: str) -> dict[str, bytes]:
    """The files of a golden lakehouse: path below the root to content."""
    with tarfile.open(FOLDER / f"{name}.tar.gz", "r:gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {path: member.read() for path, member in members.items() if member is not None}


def unpack_into(name: str, folder: Path) -> Path:
    """The files of a golden lakehouse, below a folder of the local disk."""
    for path, data in unpack(name).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def describe(lake: tl.Lakehouse) -> dict[str, Any]:
    """What every version of a lakehouse holds, as JSON."""
    oldest = lake.log(None)[-1].version
    return {
        "name": lake.name,
        "latest": lake.version,
        "versions": [describe_version(lake, number) for number in range(oldest, lake.version + 1)],
    }


def describe_version(lake: tl.Lakehouse, number: int) -> dict[str, Any]:
    """One version: its entry in the log, every object with the id of its definition and what tells it, every node."""
    at = lake.at(number)
    entry = at.entry
    objects: list[dict[str, Any]] = []
    for name in at.namespaces():
        namespace = at.namespace(name)
        objects.append({"kind": "namespace", "name": name, "id": namespace.id, "properties": namespace.properties})
    for name in at.tables():
        table = at.table(name)
        columns = [[column.name, str(column.type)] for column in table.schema.columns]
        objects.append({"kind": "table", "name": name, "id": table.id, "columns": columns})
    for name in at.views():
        view = at.view(name)
        objects.append({"kind": "view", "name": name, "id": view.id, "representations": view.representations})
    return {
        "version": number,
        "created_at": entry.created_at.isoformat(),
        "rollback_from": entry.rollback_from,
        "transactions": [
            {
                "id": one.id,
                "isolation": one.isolation,
                "message": one.message,
                "author": one.author,
                "began_at_version": one.began_at_version,
                "properties": one.properties,
                **({"summary": one.summary} if one.summary else {}),
            }
            for one in entry.transactions
        ],
        "properties": at.properties,
        "objects": objects,
        "nodes": [
            {name: node[name] for name in ("path", "parent", "height", "n_keys", "n_messages", "first_key", "last_key")}
            for node in at.nodes().to_pylist()
        ],
    }


def describe_rows(lake: tl.Lakehouse) -> dict[str, dict[str, list[list[Any]]]]:
    """The rows of every table in every version, sorted. Only where the lakehouse lies at the root it was written at."""
    rows: dict[str, dict[str, list[list[Any]]]] = {}
    for number in range(lake.log(None)[-1].version, lake.version + 1):
        at = lake.at(number)
        tables = {name: at.table(name).scan().to_arrow().to_pylist() for name in at.tables()}
        rows[str(number)] = {name: sorted(list(row.values()) for row in found) for name, found in tables.items()}
    return rows


def put_in_memory(name: str, root: str) -> tl.Lakehouse:
    """A golden lakehouse in the memory of this process, at the root it was written at."""
    storage = _core.Storage(root)
    storage.put_many(list(unpack(name).items()))
    return tl.open(root)
