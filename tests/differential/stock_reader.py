"""Reads tables with unmodified PyIceberg, in a process that does not import this library.

Each line of standard input contains the path of a metadata file and the path of an Arrow IPC file to which the rows are
written. Each line is answered by one line.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from pyiceberg.table import StaticTable

for line in sys.stdin:
    metadata, target = line.rstrip("\n").split("\t")
    try:
        rows = StaticTable.from_metadata(metadata).scan().to_arrow()
        with pa.OSFile(target, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        answer = "done"
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(answer, flush=True)
