"""One node file, read with pyarrow and held against every rule that a node alone can break (format §5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

CHECKSUM = b"trinitylake.checksum"
NOT_COMPRESSED, ZSTD_MAGIC = -1, b"\x28\xb5\x2f\xfd"


class BrokenRule(AssertionError):
    """A file contradicts the format."""


def require(condition: object, rule: str) -> None:
    """A rule of the format."""
    if not condition:
        raise BrokenRule(rule)


@dataclass
class Message:
    """A row of the write buffer; a value of None deletes."""

    key: str
    value: str | None
    txn: str


@dataclass
class NodeRows:
    """The three parts of a node file, top to bottom."""

    system: dict[str, str]
    #: Exactly N rows of key, value, pnode.
    table: list[tuple[str | None, str | None, str | None]]
    buffer: list[Message]
    keys: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)

    @property
    def height(self) -> int:
        return int(self.system["height"])

    def last_messages(self) -> dict[str, str | None]:
        """Key to value of the message that wins: the one furthest down."""
        return {message.key: message.value for message in self.buffer}


def read_node(data: bytes, order: int) -> NodeRows:
    """The rows of a node file. Raises `BrokenRule`."""
    batch = _record_batch(data)
    rows = list(zip(*(batch.column(name).to_pylist() for name in ("key", "value", "pnode", "txn")), strict=True))
    first = next((i for i, (key, value, _, _) in enumerate(rows) if key is None and value is None), None)
    require(first is not None, "a row with neither key nor value begins the key table")
    assert first is not None
    table, buffer = rows[first : first + order], rows[first + order :]
    require(len(table) == order, f"the key table has exactly {order} rows, not {len(table)}")

    for _, _, pnode, txn in rows[:first]:
        require(pnode is None and txn is None, "system rows have neither pnode nor txn")
    system = {key: value for key, value, _, _ in rows[:first]}
    require(len(system) == first and None not in system.values(), "system rows have a key of their own and a value")
    for key, _, pnode, txn in buffer:
        require(key is not None and txn is not None, "a message has key and txn")
        require(pnode is None, "a message has no pnode")
    require(all(txn is None for *_, txn in table), "rows of the key table have no txn")

    node = NodeRows(
        system,
        [(key, value, pnode) for key, value, pnode, _ in table],
        [Message(key, value, txn) for key, value, _, txn in buffer],
    )
    _check_table(node, order)
    return node


def read_system_rows(data: bytes) -> dict[str, str]:
    """The rows above the first one with neither key nor value, where they end whatever the order is."""
    batch = _record_batch(data)
    system = {}
    for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
        if key is None and value is None:
            break
        system[key] = value
    return system


def _check_table(node: NodeRows, order: int) -> None:
    n_keys = int(node.system["n_keys"])
    require(n_keys <= order - 1, f"n_keys is at most N - 1, not {n_keys}")
    require(node.table[0][:2] == (None, None), "the first row of the key table has neither key nor value")
    filled, rest = node.table[1 : n_keys + 1], node.table[n_keys + 1 :]
    require(all(key is not None and value is not None for key, value, _ in filled), "n_keys rows have key and value")
    require(all(row == (None, None, None) for row in rest), "the rows after the keys are all null")
    node.keys = [key for key, _, _ in filled if key is not None]
    node.values = [value for _, value, _ in filled if value is not None]
    require(all(a.encode() < b.encode() for a, b in zip(node.keys, node.keys[1:], strict=False)), "keys ascend")
    pnodes = [pnode for _, _, pnode in node.table[: n_keys + 1]]
    node.children = [pnode for pnode in pnodes if pnode is not None]
    if pnodes[0] is None:
        require(not node.children, "a leaf has no child at all")
        require(node.height == 0, "a leaf has height 0")
    else:
        require(len(node.children) == n_keys + 1, "a child stands beside every key")
        require(node.height > 0, "an inner node has a height above 0")
    require(len(set(node.children)) == len(node.children), "no child twice")


def _record_batch(data: bytes) -> pa.RecordBatch:
    """The one record batch of an Arrow IPC file, after a look at the file around it."""
    require(data[:8] == b"ARROW1\0\0" and data[-6:] == b"ARROW1", "an Arrow IPC file")
    with pa.ipc.open_file(data) as reader:
        require(reader.num_record_batches == 1, "one record batch")
        schema, batch = reader.schema, reader.get_batch(0)
        metadata = reader.metadata or {}
    batch.validate(full=True)
    require(schema.names == ["key", "value", "pnode", "txn"], f"the columns, not {schema.names}")
    for number, column in enumerate(schema, start=1):
        require(column.type == pa.string() and column.nullable, f"{column.name} is nullable Utf8")
        require((column.metadata or {}).get(b"id") == str(number).encode(), f"{column.name} has the field id {number}")
    _check_checksum(data, metadata)
    require(_is_zstd(data, batch), "our writer compresses with ZSTD")
    return batch


def _check_checksum(data: bytes, metadata: dict[bytes, bytes]) -> None:
    (footer_size,) = struct.unpack("<i", data[-10:-6])
    covered = data[: len(data) - 10 - footer_size]
    stated = metadata.get(CHECKSUM, b"").decode()
    require(stated == f"xxh3-64:{xxhash.xxh3_64_hexdigest(covered)}", f"the checksum is that of the bytes: {stated}")


def _is_zstd(data: bytes, batch: pa.RecordBatch) -> bool:
    """Whether each buffer is compressed with ZSTD, or says that it is not: small ones would not become smaller.

    pyarrow does not tell how a batch was compressed, so this looks for each buffer in the file: its uncompressed size,
    eight bytes, little endian, and then the magic number of a ZSTD frame, or -1 and then its bytes.
    """
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size]
    return all(
        struct.pack("<q", buffer.size) + ZSTD_MAGIC in data or struct.pack("<q", -1) + buffer.to_pybytes() in data
        for buffer in buffers
    )
