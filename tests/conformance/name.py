"""File names and keys, built and taken apart from the rules of the format's pages (§§2-4)."""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple

import mmh3

from conformance.node import require

#: Definitions have UUIDs of version 8, which tell of the content; older ones of version 4.
UUID8 = r"[0-9a-f]{8}-[0-9a-f]{4}-[48][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
SPREAD = r"[01]{4}/[01]{4}/[01]{4}/[01]{8}-"
#: Every kind of file that the tree and its versions may leave, by its whole path.
FILES = {
    "root": re.compile(r"_[01]{32,63}\.arrow"),
    "node": re.compile(rf"{SPREAD}node-{UUID4}\.arrow"),
    "definition": re.compile(rf"{SPREAD}(namespace|table|view)-.*-{UUID8}\.binpb", re.S),
    "lakehouse definition": re.compile(rf"_lakehouse_def_{UUID8}\.binpb"),
    "hint": re.compile(r"_latest_hint\.txt"),
    "boundary": re.compile(r"_expired/[0-9]{20}"),
    "transaction": re.compile(r"_txn/[A-Za-z0-9._-]{1,100}/[0-9]{20}\.binpb"),
}
KINDS = {"B===": "namespace", "C===": "table", "D===": "view", "E===": "transaction"}


class Sizes(NamedTuple):
    """The longest names, in bytes."""

    namespace: int
    table: int
    view: int


class ObjectName(NamedTuple):
    """What a key says. A transaction's id is its name."""

    kind: str
    namespace: str
    name: str


def root_path(version: int) -> str:
    """`_` + binary digits, the least significant first, at least 32 of them."""
    return f"_{format(version, 'b')[::-1].ljust(32, '0')}.arrow"


def root_version(path: str) -> int:
    """The version of a root node file."""
    return int(path[1:].partition(".")[0][::-1], 2)


def spread(original: str) -> str:
    """The optimized form of an original path: twenty bits of its hash in front, slashes made dashes."""
    low = mmh3.hash(original.encode(), 0, signed=False) & 0xFFFFF
    digits = format(low, "020b")
    return f"{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}-{original.replace('/', '-')}"


def check_stored_path(path: str, max_size_bytes: int) -> None:
    """A path that the tree stores."""
    require(len(path.encode()) <= max_size_bytes, f"{path!r} has at most {max_size_bytes} bytes")
    for segment in path.split("/"):
        require(segment not in ("", ".", ".."), f"{path!r} has no segment {segment!r}")
        require(len(segment.encode()) <= 255, f"no segment of {path!r} has more than 255 bytes")


def check_spread(path: str, *originals: str) -> None:
    """The digits of an optimized name are of the hash of its original: the flattened name, or one with slashes.

    The folders are those of the hash as well, or such as the writer has chosen on a local disk.
    """
    *folders, name = path.split("/", 3)
    require(all(re.fullmatch("[01]{4}", folder) for folder in folders), f"the folders of {path!r} are such of a hash")
    named = {spread(original).split("/", 3)[3] for original in (name.partition("-")[2], *originals)}
    require(name in named, f"the prefix of {path!r} is its hash")


def original_definition_path(name: ObjectName, path: str) -> str:
    """What the definition file of an object would be called before optimization, given the file's own UUID."""
    file_id = path[-len(".binpb") - 36 : -len(".binpb")]
    require(uuid.UUID(file_id).version in (4, 8), f"{file_id} is a UUID of version 8, or of 4 in older files")
    identifier = name.namespace if name.kind == "namespace" else f"{name.name}-{name.namespace}"
    return f"{name.kind}-{identifier}-{file_id}.binpb"


def decode_key(key: str, sizes: Sizes) -> ObjectName:
    """The object that a key stands for."""
    kind = KINDS[key[:4]]
    body = key[4:].encode()
    widths = {
        "namespace": (sizes.namespace,),
        "table": (sizes.namespace, sizes.table),
        "view": (sizes.namespace, sizes.view),
        "transaction": (100,),
    }[kind]
    require(len(body) == sum(widths), f"the key {key!r} has {sum(widths)} bytes behind its schema id")
    parts = [body[: widths[0]], body[widths[0] :]]
    names = [part.decode().rstrip(" ") for part in parts]
    for name in names[: len(widths)]:
        require(name and name[0] != " ", f"the key {key!r} holds padded names, which do not begin with a space")
        require(not re.search(r"[\x00-\x1f\x7f]", name), f"{name!r} has no control character")
    if kind == "transaction":
        return ObjectName(kind, "", names[0])
    for level in names[0].split("."):
        require(level and level == level.strip(" "), f"{level!r}, a part of namespace {names[0]!r}, is a name")
    return ObjectName(kind, names[0], names[1] if len(widths) == 2 else "")
