"""File names and keys: encoded and decoded by the original documents (Storage Location, Key Encoding)."""

from __future__ import annotations

import re
from typing import NamedTuple

import mmh3

from conformance.rule import require

#: "a version 4 UUID"
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
#: "For the first, second and third group of 4 characters in the prefix, further separated with `/`."
PREFIX = r"[01]{4}/[01]{4}/[01]{4}/[01]{8}-"
FILES = {
    "root": re.compile(r"_[01]{32}\.arrow"),
    "node": re.compile(rf"{PREFIX}node-{UUID4}\.arrow"),
    "definition": re.compile(rf"{PREFIX}(namespace|table|view)-.*-{UUID4}\.binpb", re.S),
    "lakehouse definition": re.compile(rf"_lakehouse_def_{UUID4}\.binpb"),
    "hint": re.compile(r"_latest_hint\.txt"),
}
HINT = "_latest_hint.txt"
#: Kinds of objects by the first 4 characters of their keys. Keys with other characters are skipped.
KINDS = {"B===": "namespace", "C===": "table", "D===": "view"}


class Sizes(NamedTuple):
    """Maximum sizes of names in bytes."""

    namespace: int
    table: int
    view: int


class ObjectName(NamedTuple):
    """The object that a key identifies."""

    kind: str
    namespace: str
    name: str


def root_path(version: int) -> str:
    """The path `_<version_number_binary_reversed>.arrow`, padded to 32 digits."""
    return f"_{format(version, 'b')[::-1].ljust(32, '0')}.arrow"


def root_version(path: str) -> int:
    """The version of a root node file."""
    return int(path[1:].partition(".")[0][::-1], 2)


def optimized(original: str) -> str:
    """The optimized form of an original path: 20 bits of its hash, then the path with dashes instead of slashes."""
    low = mmh3.hash(original.encode(), 0, signed=False) & 0xFFFFF
    digits = format(low, "020b")
    return f"{digits[:4]}/{digits[4:8]}/{digits[8:12]}/{digits[12:]}-{original.replace('/', '-')}"


def check_stored_path(path: str, max_size_bytes: int) -> None:
    """Check a path that the tree stores: relative, not too long, and unchanged by POSIX path resolution."""
    require(len(path.encode()) <= max_size_bytes, f"{path!r} has at most {max_size_bytes} bytes")
    for segment in path.split("/"):
        require(segment not in ("", ".", ".."), f"{path!r} has no segment {segment!r}")


def check_optimized(path: str, original: str = "") -> None:
    """Check that a path is the optimized form of its original path.

    If the object was renamed, or its name was truncated, the original path is unknown. Then the slashes in it are also
    unknown, and the path is checked without them.
    """
    flattened = path.split("/", 3)[3].partition("-")[2]
    if original.replace("/", "-") != flattened:
        original = flattened
    require(path == optimized(original), f"the prefix of {path!r} is its hash")


def original_definition_path(name: ObjectName, path: str) -> str:
    """The original path: `{object-type}-{object-identifier}-` and the UUID of the file."""
    identifier = name.namespace if name.kind == "namespace" else f"{name.name}-{name.namespace}"
    return f"{name.kind}-{identifier}-{path[-len('.binpb') - 36 :]}"


def decode_key(key: str, sizes: Sizes) -> ObjectName | None:
    """The object of a key; None for an unknown kind of object."""
    kind = KINDS.get(key[:4])
    if kind is None:
        return None
    body = key[4:].encode()
    widths = {
        "namespace": (sizes.namespace,),
        "table": (sizes.namespace, sizes.table),
        "view": (sizes.namespace, sizes.view),
    }[kind]
    require(len(body) == sum(widths), f"the key {key!r} has {sum(widths)} bytes behind its schema id")
    names = [part.decode().rstrip(" ") for part in (body[: widths[0]], body[widths[0] :])]
    for name in names[: len(widths)]:
        require(name and name[0] != " ", f"the key {key!r} holds right-padded names")
        require(not re.search(r"[\x00-\x1f\x7f]", name), f"{name!r} has no control character")
    return ObjectName(kind, *names) if len(widths) == 2 else ObjectName(kind, names[0], "")
