"""Writes valid and invalid node files row by row with pyarrow."""

from __future__ import annotations

import io
import struct
import uuid
from pathlib import Path

import pyarrow as pa
import xxhash

from conformance.extensions import definition_message
from trinitylake.definitions import parse_lakehouse_def, serialize

#: Rows of key, value, pnode, txn, top to bottom.
Rows = list[list[str | None]]
KEY, VALUE, PNODE, TXN = range(4)


def to_rows(data: bytes) -> Rows:
    return [list(row.values()) for row in pa.ipc.open_file(data).get_batch(0).to_pylist()]


def to_bytes(
    rows: Rows, compression: str | None = "zstd", ids: bool = True, batches: int = 1, checksum: bool = True
) -> bytes:
    """A node file with these rows and the correct checksum."""
    names = ("key", "value", "pnode", "txn")
    fields = [pa.field(name, pa.string(), metadata={"id": str(i)} if ids else None) for i, name in enumerate(names, 1)]
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(4)]
    batch = pa.record_batch(columns, schema=pa.schema(fields))

    def write(metadata: dict[str, str]) -> bytes:
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(sink, batch.schema, options=options, metadata=metadata) as writer:
            for _ in range(batches):
                writer.write_batch(batch)
        return sink.getvalue()

    plain = write({})
    if not checksum:
        return plain
    (footer_size,) = struct.unpack("<i", plain[-10:-6])
    digest = xxhash.xxh3_64_hexdigest(plain[: len(plain) - 10 - footer_size])
    return write({"trinitylake.checksum": f"xxh3-64:{digest}"})


def forget_recorded_root(folder: Path) -> None:
    """Remove the recorded root from all definitions of a lakehouse, as if another implementation had written them."""
    for root in folder.glob("_*.arrow"):
        rows = to_rows(root.read_bytes())
        system = {row[KEY]: row for row in rows if row[KEY] is not None}
        path = str(system["lakehouse_def"][VALUE])
        definition = parse_lakehouse_def(definition_message(path, (folder / path).read_bytes()))
        definition.ClearField("root_uri")
        new_path = f"_lakehouse_def_{uuid.uuid4()}.binpb"
        (folder / new_path).write_bytes(serialize(definition))
        system["lakehouse_def"][VALUE] = new_path
        root.write_bytes(to_bytes([row for row in rows if row[KEY] != "lakehouse_def_inline"]))
