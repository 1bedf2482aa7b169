"""Archives of golden lakehouses: packing, unpacking, and describing their content."""

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
#: A lakehouse whose last root contains definitions without files.
HELD_DEFINITIONS = "held_definitions"


def names() -> list[str]:
    """Names of all golden lakehouses with a long history, such as `0.1/order_3`."""
    return sorted(str(path.relative_to(FOLDER))[: -len(".tar.gz")] for path in FOLDER.glob("*/order_*.tar.gz"))


def held_definitions(system: dict[str, str]) -> dict[str, bytes]:
    """Definitions in the system rows of a root, by path (format §4)."""
    lines = (line.split("\t") for line in system.get("definitions_inline", "").splitlines())
    return {path: bytes.fromhex(data) for path, data in lines}


def expectation(name: str) -> dict[str, Any]:
    """The content of a golden lakehouse when it was written; see `describe`."""
    expected: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    for one in (one for version in expected["versions"] for one in version["objects"]):  # spelled as in that release
        if "columns" in one:
            one["columns"] = [[name, str(parse_type(type))] for name, type in one["columns"]]
    return expected


def pack(files: dict[str, bytes]) -> bytes:
    """A tar.gz archive of files; equal files give equal bytes."""
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
    """Files of a golden lakehouse, by path below the root."""
    with tarfile.open(FOLDER / f"{name}.tar.gz", "r:gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {path: member.read() for path, member in members.items() if member is not None}


def unpack_into(name: str, folder: Path) -> Path:
    """Write the files of a golden lakehouse to a folder on the local disk."""
    for path, data in unpack(name).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def describe(lake: tl.Lakehouse) -> dict[str, Any]:
    """The content of every version of a lakehouse, as JSON."""
    oldest = lake.log(None)[-1].version
    return {
        "name": lake.name,
        "latest": lake.version,
        "versions": [describe_version(lake, number) for number in range(oldest, lake.version + 1)],
    }


def describe_version(lake: tl.Lakehouse, number: int) -> dict[str, Any]:
    """The log entry of a version, every object with the content of its definition, and every node."""
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
    """Sorted rows of every table in every version. The lakehouse must be at the root at which it was written."""
    rows: dict[str, dict[str, list[list[Any]]]] = {}
    for number in range(lake.log(None)[-1].version, lake.version + 1):
        at = lake.at(number)
        tables = {name: at.table(name).scan().to_arrow().to_pylist() for name in at.tables()}
        rows[str(number)] = {name: sorted(list(row.values()) for row in found) for name, found in tables.items()}
    return rows


def put_in_memory(name: str, root: str) -> tl.Lakehouse:
    """Copy a golden lakehouse into memory, at the root at which it was written."""
    storage = _core.Storage(root)
    storage.put_many(list(unpack(name).items()))
    return tl.open(root)
