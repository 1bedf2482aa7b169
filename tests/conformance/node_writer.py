"""Node files made row by row with pyarrow, right or wrong, for readers to take or refuse."""

from __future__ import annotations

import io
import struct

import pyarrow as pa
import xxhash

#: Rows of key, value, pnode, txn, top to bottom.
Rows = list[list[str | None]]
KEY, VALUE, PNODE, TXN = range(4)


def to_rows(data: bytes) -> Rows:
    return [list(row.values()) for row in pa.ipc.open_file(data).get_batch(0).to_pylist()]


def to_bytes(
    rows: Rows, compression: str | None = "zstd", ids: bool = True, batches: int = 1, checksum: bool = True
) -> bytes:
    """A node file of these rows, with the checksum that belongs to it."""
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
