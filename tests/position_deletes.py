"""Position deletes and equality deletes, written as other engines write them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

import trinitylake as tl
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer


def delete_values(
    table: tl.Table, keys: pa.Table, task: FileScanTask | None = None, equality_ids: Sequence[int] = ()
) -> None:
    """Delete the rows with the values of one of `keys` by an equality delete, as Flink does.

    The delete applies to the partition of a data file, or to all partitions if its spec has no fields.
    """
    with table._writing() as iceberg:
        fields = [iceberg.schema().find_field(name) for name in keys.column_names]
        metadata = [{"PARQUET:field_id": str(field.field_id)} for field in fields]
        schema = pa.schema([one.with_metadata(ids) for one, ids in zip(keys.schema, metadata, strict=True)])
        output = iceberg.io.new_output(f"{iceberg.location()}/data/deletes-{uuid.uuid4()}.parquet")
        with output.create() as stream:
            pq.write_table(keys.cast(schema), stream)
        plain = next((spec.spec_id for spec in iceberg.specs().values() if spec.is_unpartitioned()), 0)
        file = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=output.location,
            file_format=FileFormat.PARQUET,
            partition=Record() if task is None else task.file.partition,
            record_count=keys.num_rows,
            file_size_in_bytes=len(output),
            equality_ids=list(equality_ids) or [field.field_id for field in fields],
        )
        file.spec_id = plain if task is None else task.file.spec_id
        _add(iceberg, file)


def delete_positions(table: tl.Table, task: FileScanTask, positions: Sequence[int]) -> None:
    """Delete the rows at these positions of a data file by a delete file in the same partition."""
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
