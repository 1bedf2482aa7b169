"""One node file, read with pyarrow (origin: Storage Layout, Search Tree Map)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from conformance.rule import require


@dataclass
class Message:
    """Message in the write buffer; None as the value deletes the key."""

    key: str
    value: str | None
    txn: str


@dataclass
class NodeRows:
    """The three sections of a node file, from top to bottom."""

    system: dict[str, str]
    #: Exactly N rows: key, value, pnode.
    table: list[tuple[str | None, str | None, str | None]]
    buffer: list[Message]
    keys: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)

    def last_messages(self) -> dict[str, str | None]:
        """Value of the last message of each key: new messages are appended at the bottom."""
        return {message.key: message.value for message in self.buffer}


def read_node(data: bytes, order: int) -> NodeRows:
    """The rows of a node file. Raises `BrokenRule`."""
    rows = _rows(data)
    first = _table_start(rows)
    table, buffer = rows[first : first + order], rows[first + order :]
    require(len(table) == order, f"the key table has exactly {order} rows, not {len(table)}")
    for key, _, pnode, txn in buffer:
        require(key is not None and txn is not None, "a message has key and txn")
        require(pnode is None, "a message has no pnode")
    require(all(txn is None for *_, txn in table), "rows of the key table have no txn")
    node = NodeRows(
        _system(rows[:first]),
        [(key, value, pnode) for key, value, pnode, _ in table],
        [Message(str(key), value, str(txn)) for key, value, _, txn in buffer],
    )
    _check_table(node, order)
    return node


def read_system_rows(data: bytes) -> dict[str, str]:
    """System rows of a node: the rows above the first row without key and value. The order is not needed."""
    rows = _rows(data)
    return _system(rows[: _table_start(rows)])


Row = tuple[str | None, str | None, str | None, str | None]


def _table_start(rows: list[Row]) -> int:
    """Index of the first row of the key table: the first row whose key and value are NULL."""
    first = next((i for i, (key, value, _, _) in enumerate(rows) if key is None and value is None), None)
    require(first is not None, "a row with neither key nor value begins the key table")
    assert first is not None
    return first


def _system(rows: list[Row]) -> dict[str, str]:
    """System rows as a dictionary. Key and value must not be NULL; callers skip unknown keys."""
    require(all(key is not None and value is not None for key, value, _, _ in rows), "system rows have key and value")
    return {str(key): str(value) for key, value, _, _ in rows}


def _check_table(node: NodeRows, order: int) -> None:
    n_keys = int(node.system["n_keys"])
    require(n_keys <= order - 1, f"n_keys is at most N - 1, not {n_keys}")
    require(node.table[0][:2] == (None, None), "the first row of the key table has neither key nor value")
    filled, rest = node.table[1 : n_keys + 1], node.table[n_keys + 1 :]
    require(all(key is not None and value is not None for key, value, _ in filled), "n_keys rows have key and value")
    require(all(row == (None, None, None) for row in rest), "the rows after the keys are all null")
    node.keys = [key for key, _, _ in filled if key is not None]
    node.values = [value for _, value, _ in filled if value is not None]
    require(all(a.encode() < b.encode() for a, b in pairwise(node.keys)), "keys ascend")
    pnodes = [pnode for _, _, pnode in node.table[: n_keys + 1]]
    node.children = [pnode for pnode in pnodes if pnode is not None]
    require(len(node.children) in (0, n_keys + 1), "a node has a child next to every key, or no child at all")
    require(len(set(node.children)) == len(node.children), "no child twice")


def _rows(data: bytes) -> list[Row]:
    """The rows of an Arrow IPC file, which must have the four columns."""
    require(data[:6] == b"ARROW1" and data[-6:] == b"ARROW1", "an Arrow IPC file")
    with pa.ipc.open_file(data) as reader:
        table = reader.read_all()
    table.validate(full=True)
    require(table.schema.names == ["key", "value", "pnode", "txn"], f"the columns, not {table.schema.names}")
    for number, column in enumerate(table.schema, start=1):
        require(column.type == pa.string() and column.nullable, f"{column.name} is a String that is not required")
        require((column.metadata or {}).get(b"id") == str(number).encode(), f"{column.name} has the field id {number}")
    return list(zip(*(table.column(name).to_pylist() for name in table.schema.names), strict=True))
