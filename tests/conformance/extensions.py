"""The extensions of docs/format.md, section 11: additions to files that a reader of the original documents accepts."""

from __future__ import annotations

import json
import re
import struct
import uuid
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import xxhash

from conformance.lakehouse import SeedLakehouse, SeedVersion
from conformance.name import FILES, ObjectName
from conformance.rule import require

CHECKSUM = b"trinitylake.checksum"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Fields 1008 (fixed64) and 1009 (string) of a definition file (§6).
CHECKSUM_TAG, PATH_TAG = b"\x81\x3f", b"\x8a\x3f"
RECORD_KEY = "E==="
TRANSACTION_FIELDS = {"id", "isolation", "message", "author", "began_at_version", "properties"}
#: Names of all files outside of table folders.
ALL_FILES = {
    **FILES,
    "boundary": re.compile(r"_expired/[0-9]{20}"),
    "transaction": re.compile(r"_txn/[A-Za-z0-9._-]{1,100}/[0-9]{20}\.binpb"),
}


def check_extensions(lakehouse: SeedLakehouse, versions: list[SeedVersion]) -> None:
    """Check every extension in every version. Raises `BrokenRule`."""
    check_file_names(lakehouse.files)
    boundary = boundary_of(lakehouse.files)
    numbers = [version.number for version in versions]
    require(numbers == list(range(boundary, versions[-1].number + 1)), f"versions are contiguous: {numbers}")
    for path, data in lakehouse.files.items():
        if path.endswith(".binpb"):
            definition_message(path, data)
        elif path.endswith(".arrow"):
            check_node_file(data)
    for version in versions:
        _check_version(version)
    for before, after in pairwise(versions):
        _check_pair(before, after)


def check_file_names(files: Mapping[str, bytes]) -> None:
    """Check that each file outside of table folders has a name that the format defines."""
    for path in files:
        is_known = any(pattern.fullmatch(path) for pattern in ALL_FILES.values())
        require(is_known or "/metadata/" in path or "/data/" in path, f"{path!r} is a name of the format")
        require(all(len(part.encode()) <= 255 for part in path.split("/")), f"no segment of {path!r} is too long")


def boundary_of(files: Mapping[str, bytes]) -> int:
    """The expiry boundary: the roots of lower versions have expired (§7)."""
    return max((int(path.rpartition("/")[2]) for path in files if path.startswith("_expired/")), default=0)


def definition_message(path: str, data: bytes) -> bytes:
    """The message in a definition file, after a check of its checksum and path (§6)."""
    require(data[:2] == CHECKSUM_TAG, f"{path} begins with its checksum")
    covered = data[10:]
    require(struct.unpack("<Q", data[2:10])[0] == xxhash.xxh3_64_intdigest(covered), f"the checksum of {path}")
    size = len(path.encode())
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    field = PATH_TAG + length + path.encode()
    require(covered.startswith(field), f"{path} names itself")
    return covered[len(field) :]


def inline_definitions(version: SeedVersion) -> dict[str, bytes]:
    """Definitions that the root contains because their files may not exist (§4)."""
    return _definitions_in(version, "definitions_inline")


def copied_definitions(version: SeedVersion) -> dict[str, bytes]:
    """Copies of definitions whose files exist (§4)."""
    return _definitions_in(version, "definitions_copied")


def _definitions_in(version: SeedVersion, row: str) -> dict[str, bytes]:
    lines = version.root.system.get(row, "").splitlines()
    return {path: bytes.fromhex(text) for path, text in (line.split("\t") for line in lines)}


def records(version: SeedVersion) -> dict[str, str]:
    """Locations of the records of transactions, by transaction id (§4)."""
    found = {key: location for key, location in version.locations.items() if key.startswith(RECORD_KEY)}
    require(all(len(key) == len(RECORD_KEY) + 100 for key in found), "an id is padded to 100 bytes")
    return {key[len(RECORD_KEY) :].rstrip(" "): location for key, location in found.items()}


def transactions(version: SeedVersion) -> list[dict[str, Any]]:
    """The transactions in a version, in commit order (§4)."""
    found: list[dict[str, Any]] = json.loads(version.root.system["committed_txns"])
    return found


def check_node_file(data: bytes) -> None:
    """One compressed record batch, with a checksum in the footer (§5)."""
    with pa.ipc.open_file(data) as reader:
        require(reader.num_record_batches == 1, "one record batch")
        batch, metadata = reader.get_batch(0), reader.metadata or {}
    (footer_size,) = struct.unpack("<i", data[-10:-6])
    covered = data[: len(data) - 10 - footer_size]
    stated = metadata.get(CHECKSUM, b"").decode()
    require(stated == f"xxh3-64:{xxhash.xxh3_64_hexdigest(covered)}", f"the checksum is that of the bytes: {stated}")
    require(_is_zstd(data, batch), "our writer compresses with ZSTD")


def _is_zstd(data: bytes, batch: pa.RecordBatch) -> bool:
    """Whether each buffer is compressed with ZSTD, or marked as uncompressed, as for small buffers.

    pyarrow does not return the compression of a batch. Therefore the bytes of each buffer are searched for in the file:
    its uncompressed size (8 bytes, little endian) and the magic number of a ZSTD frame, or -1 and the uncompressed
    bytes.
    """
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(
        struct.pack("<q", buffer.size) + ZSTD_MAGIC in data or struct.pack("<q", -1) + buffer.to_pybytes() in data
        for buffer in buffers
    )


def _check_version(version: SeedVersion) -> None:
    system, files = version.root.system, version.lakehouse.files
    require(system["version"] == str(version.number), "the root knows its version")
    require(uuid.UUID(system["commit_id"]).version == 4, "a commit id is a version 4 UUID")
    for node in version.nodes:
        require(node.rows.system["height"] == str(node.height), f"{node.path} knows its height")
        if node.parent is not None:
            named = node.rows.system["node_id"]
            require(node.path.endswith(f"-node-{named}.arrow"), f"{node.path} knows its own UUID")
    if "lakehouse_def_inline" in system:
        require(
            bytes.fromhex(system["lakehouse_def_inline"]) == files[version.definition_path], "the repeated definition"
        )
    for path, data in inline_definitions(version).items():
        definition_message(path, data)
        require(files.get(path, data) == data, f"{path} has the content that the root holds")
    for path, data in copied_definitions(version).items():
        require(files[path] == data, f"{path} exists with the content that the root copies")
    _check_transactions(version)
    for name, location in version.objects.items():
        require(uuid.UUID(version.definition_of(name)["id"]), f"{name} has an id")
        other = name._replace(kind="view" if name.kind == "table" else "table")
        require(
            name.kind == "namespace" or other not in version.objects, f"{name} shares its name with no {other.kind}"
        )
        for level in name.namespace.split("."):
            require(level and level == level.strip(" "), f"{level!r}, a part of {location}, is a name")
    for id, location in records(version).items():
        require(location.startswith(f"_txn/{id}/"), f"{location} is the record of transaction {id}")
        # An expiry deletes records. It deletes a saved state before it removes the key from the tree.
        is_state = int(location.rpartition("/")[2].removesuffix(".binpb")) < 2**63
        is_latest = version.number == version.lakehouse.latest()
        is_kept = boundary_of(files) == 0 or (is_latest and not is_state)
        require(location in files or not is_kept, f"the record of {id} exists")


def _check_transactions(version: SeedVersion) -> None:
    committed = transactions(version)
    for transaction in committed:
        fields = set(transaction) - {"summary"}
        require(fields == TRANSACTION_FIELDS, f"the fields of a transaction, not {sorted(transaction)}")
        summary = transaction.get("summary", "-")
        require(0 < len(summary.encode()) <= 300 and summary.isprintable(), f"one short line, not {summary!r}")
        require(0 <= transaction["began_at_version"] < version.number, "a transaction began before its version")
    identifiers = {transaction["id"] for transaction in committed}
    own = [message.txn in identifiers for message in version.root.buffer]
    require(own == sorted(own), "the rows of the newest commit are the tail of the root's buffer")


def _check_pair(before: SeedVersion, after: SeedVersion) -> None:
    created = int(after.root.system["created_at_millis"]), int(before.root.system["created_at_millis"])
    require(created[0] > created[1], "time does not run backwards")
    require(after.order == before.order and after.sizes == before.sizes, "what shapes the tree is fixed for life")
    last = before.root.system.get("last_rollback")
    if "rollback_from_root" in before.root.system:
        last = str(before.number)
    if "rollback_from_root" in after.root.system:
        last = str(after.number)
    require(after.root.system.get("last_rollback") in (None, last), "the root names the last rollback")
    committed = transactions(after)
    for transaction in committed:
        if (given_up := transaction["properties"].get("trinitylake.rolled-back")) is not None:
            require(given_up in records(after), f"{given_up} has a record")
            require(given_up not in records(before), f"the record of {given_up} is new")
            require(all(one["id"] != given_up for one in committed), f"{given_up} is not also committed")
    if "rollback_from_root" not in after.root.system and not after.is_rebuilt():
        _check_told(before, after, {transaction["id"] for transaction in committed})


def _check_told(before: SeedVersion, after: SeedVersion, identifiers: set[str]) -> None:
    """Check that the messages of a version's own transactions contain all its changes (§5)."""
    recorded = {message.key: message.value for message in after.root.buffer if message.txn in identifiers}
    changed = {
        key: after.locations.get(key)
        for key in after.locations.keys() | before.locations.keys()
        if after.locations.get(key) != before.locations.get(key)
    }
    require(changed.items() <= recorded.items(), "the root's buffer has everything that its version changed")


def definition_of(version: SeedVersion, name: ObjectName) -> dict[str, Any]:
    """The definition of an object, from the root if its file does not exist."""
    from conformance.definition import object_definition

    location = version.objects[name]
    data = version.lakehouse.files.get(location)
    return object_definition(name.kind, inline_definitions(version)[location] if data is None else data)
