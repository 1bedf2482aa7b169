"""Functions of the format over Arrow columns: file names, keys and nodes.

The functions call the Rust core and need no handle, thread or connection, so all of them are safe in a PySpark UDF. An
argument that is an array can be anything that pyarrow can read: a pyarrow, polars or numpy array, a list, any object
with the Arrow C data interface. The results are pyarrow arrays. Section numbers (§) are of `docs/format.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

import pyarrow as pa

from trinitylake import _core

__all__ = [
    "KeySizes",
    "NodeFile",
    "decode_definition_file",
    "decode_keys",
    "encode_definition_file",
    "encode_namespace_keys",
    "encode_table_keys",
    "encode_view_keys",
    "merge_messages",
    "optimize_paths",
    "read_node",
    "root_path",
    "root_version",
    "search_node",
]


def __dir__() -> list[str]:
    return __all__


class HasKeySizes(Protocol):
    """Sizes of names in keys: a `KeySizes` or the definition of a lakehouse."""

    @property
    def namespace_name_max_size_bytes(self) -> int: ...
    @property
    def table_name_max_size_bytes(self) -> int: ...
    @property
    def view_name_max_size_bytes(self) -> int: ...


class KeySizes(NamedTuple):
    """Maximum sizes of names in bytes of UTF-8. Names in keys are padded with spaces to these sizes (§4)."""

    namespace_name_max_size_bytes: int = 100
    table_name_max_size_bytes: int = 100
    view_name_max_size_bytes: int = 100

    @classmethod
    def of(cls, config: HasKeySizes | None) -> KeySizes:
        """The sizes of `config`, which can be pickled; the defaults for None."""
        if config is None:
            return cls()
        return cls(
            config.namespace_name_max_size_bytes or 100,
            config.table_name_max_size_bytes or 100,
            config.view_name_max_size_bytes or 100,
        )


@dataclass(frozen=True, slots=True)
class NodeFile:
    """One decoded node file (§5).

    Attributes:
        path: the path the file was read from, or "".
        height: 0 for a leaf; None for an inner node whose writer did not record it.
        n_keys: number of keys in the node key table.
        system: the system rows, values by key.
        table: the node key table (key, value, pnode) with exactly `order` rows; the first row has the leftmost child.
        buffer: the write buffer (key, value, txn), oldest message first; a null value is a delete.
    """

    path: str
    height: int | None
    n_keys: int
    system: dict[str, str]
    table: pa.RecordBatch = field(repr=False)
    buffer: pa.RecordBatch = field(repr=False)
    _node: _core.NodeFile = field(repr=False, compare=False)

    def search(self, key: str) -> tuple[Answer, str | None]:
        """Search this node for a key, as `search_node` does."""
        answer, value = self._node.search(key)
        return cast(Answer, answer), value


Answer = Literal["message", "row", "child", "absent"]


def optimize_paths(paths: Any) -> pa.StringArray:
    """Spread file paths over object-store prefixes (§3): (n,) strings to (n,) strings.

    A path becomes `aaaa/bbbb/cccc/dddddddd-<path with "/" as "-">`, where the letters are the 20 low bits of the path's
    MurmurHash3. Only writers use this; a reader never parses such a path. Nulls stay null.
    """
    return _array(_core.optimize_paths(_strings(paths)))


def root_path(version: int) -> str:
    """The file name of the root node of `version` (§3): `root_path(4)` is `_0010….arrow`."""
    return _core.root_path(version)


def root_version(path: str) -> int | None:
    """The inverse of `root_path`; None if `path` is not the name of a root node. Accepts `.ipc` too."""
    return _core.root_version(path)


def encode_namespace_keys(namespaces: Any, config: HasKeySizes | None = None) -> pa.StringArray:
    """The keys of namespaces (§4): (n,) names to (n,) keys of 4 + namespace size bytes. Raises `InvalidName`."""
    return _array(_core.encode_keys("namespace", _strings(namespaces), None, KeySizes.of(config)))


def encode_table_keys(namespaces: Any, tables: Any, config: HasKeySizes | None = None) -> pa.StringArray:
    """The keys of tables (§4): (n,) and (n,) names to (n,) keys of 4 + namespace size + table size bytes.

    `namespaces` may be one string for all tables. `config` is a `KeySizes` or a lakehouse definition; by default the
    defaults of the format apply. Raises `InvalidName` for the first invalid name.
    """
    return _object_keys("table", namespaces, tables, config)


def encode_view_keys(namespaces: Any, views: Any, config: HasKeySizes | None = None) -> pa.StringArray:
    """The keys of views (§4); arguments, shapes and errors as for `encode_table_keys`."""
    return _object_keys("view", namespaces, views, config)


def decode_keys(keys: Any, config: HasKeySizes | None = None) -> pa.RecordBatch:
    """Decode keys into the columns kind, namespace and name: the inverse of the encoders.

    The name of a namespace row is empty. Raises `InvalidArgument` for a string that is not a key of these sizes.
    """
    return _batch(_core.decode_keys(_strings(keys), KeySizes.of(config)))


def read_node(data: bytes, path: str = "") -> NodeFile:
    """Decode and check one node file (§5). Raises `CorruptFile`, with `path`, if `data` is not a valid node file."""
    node = _core.read_node(data, path)
    return NodeFile(
        path=node.path,
        height=node.height,
        n_keys=node.n_keys,
        system=dict(node.system),
        table=_batch(node.table),
        buffer=_batch(node.buffer),
        _node=node,
    )


def search_node(node: NodeFile, key: str) -> tuple[Answer, str | None]:
    """Search one node for a key (§5, "Reading a key").

    The answer is ("message", location or None for a delete) if the write buffer has the key; ("row", location) if the
    key table has the key; ("child", path) if the search continues in that node; ("absent", None) if a leaf does not
    have it.
    """
    return node.search(key)


def merge_messages(buffers: Sequence[Any]) -> pa.RecordBatch:
    """Merge write buffers, the newest last, into one row per key, in key order; the newest message remains (§5)."""
    return _batch(_core.merge_messages([_batch(buffer) for buffer in buffers]))


def encode_definition_file(path: str, definition: bytes) -> bytes:
    """The content of a definition file: checksum and path, then the serialized definition (format §6).

    Args:
        path: path of the file below the root of the lakehouse.
        definition: the serialized protobuf message.
    """
    return _core.encode_definition_file(path, definition)


def decode_definition_file(path: str, file: bytes) -> bytes:
    """The serialized definition in a definition file (format §6).

    Raises `CorruptFile` if the checksum is wrong, or if the file was written for another path.
    """
    return _core.decode_definition_file(path, file)


def _object_keys(kind: _core.Kind, namespaces: Any, names: Any, config: HasKeySizes | None) -> pa.StringArray:
    names = _strings(names)
    namespaces = pa.repeat(namespaces, len(names)) if isinstance(namespaces, str) else _strings(namespaces)
    return _array(_core.encode_keys(kind, namespaces, names, KeySizes.of(config)))


def _strings(data: Any) -> pa.StringArray:
    """A column of strings as one contiguous Arrow array, copied only if needed."""
    array = data
    if not isinstance(array, pa.Array | pa.ChunkedArray):
        array = pa.chunked_array(data) if hasattr(data, "__arrow_c_stream__") else pa.array(data)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if array.type == pa.string() else array.cast(pa.string())


def _array(data: Any) -> Any:
    return data if isinstance(data, pa.Array) else pa.array(data)


def _batch(data: Any) -> pa.RecordBatch:
    return data if isinstance(data, pa.RecordBatch) else pa.record_batch(data)
