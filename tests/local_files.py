"""Files that a lakehouse on a local disk names by location."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEME = "file://"


def local_path(location: str) -> Path:
    """Path of the file or folder at a `file://` location.

    Raises `ValueError` for every other scheme: a location such as `memory://…` is also a valid relative path, and a
    test that wrote to one wrote into the checkout.
    """
    if not location.startswith(SCHEME):
        raise ValueError(f"{location!r} is not on a local disk")
    return Path(location.removeprefix(SCHEME))


def write_parquet_of_size(rows: pa.Table, path: Path, size_bytes: int) -> None:
    """Write a Parquet file without a schema of Arrow, padded to a size, such as the one that a manifest records."""
    padding = 0
    while True:
        with pq.ParquetWriter(path, rows.schema, write_statistics=False, store_schema=False) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        missing = size_bytes - path.stat().st_size
        if missing <= 0:
            break
        padding += max(missing - 8, 1)  # the length of the padding has some bytes, too
    assert missing == 0
