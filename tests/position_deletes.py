"""Rows that are deleted by a file of positions, as engines other than this library write them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

import trinitylake as tl
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer


def delete_values(table: tl.Table, task: FileScanTask) -> None:
    """Say that a file deletes rows by their values, in the partition of a data file. The file itself is not written."""
    with table._writing() as iceberg:
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=f"{iceberg.location()}/data/deletes-{uuid.uuid4()}.parquet",
            file_format=FileFormat.PARQUET,
            partition=task.file.partition,
            record_count=1,
            file_size_in_bytes=1,
            equality_ids=[1],
            spec_id=task.file.spec_id,
        )
        file.spec_id = task.file.spec_id
        _add(iceberg, file)


def delete_positions(table: tl.Table, task: FileScanTask, positions: Sequence[int]) -> None:
    """Add a file that deletes the rows at these positions of a data file, in the partition of that."""
    with table._writing() as iceberg:
        uri = f"{iceberg.location()}/data/deletes-{uuid.uuid4()}.parquet"
        deleted = pa.table(
            {
                "file_path": pa.array([task.file.file_path] * len(positions)),
                "pos": pa.array(sorted(positions), pa.int64()),
            },
            schema=pa.schema(
                [
                    pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
                    pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
                ]
            ),
        )
        output = iceberg.io.new_output(uri)
        with output.create() as stream:
            pq.write_table(deleted, stream)
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=uri,
            file_format=FileFormat.PARQUET,
            partition=task.file.partition,
            record_count=len(positions),
            file_size_in_bytes=len(output),
            spec_id=task.file.spec_id,
        )
        file.spec_id = task.file.spec_id
        _add(iceberg, file)


def _add(iceberg: Table, file: DataFile) -> None:
    with iceberg.transaction() as change:
        producer = SnapshotProducer(change.table_metadata, iceberg.io, Operation.DELETE).add([file])
        change._apply(*producer.updates())
