"""Input files: CSV, JSON and Parquet, read by DuckDB as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from trinitylake.errors import InvalidArgument
from trinitylake.tables.sql_sandbox import connect, literal

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["csv", "json", "parquet"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = {".gz", ".zst"}
_READERS = {"csv": "read_csv", "json": "read_json", "parquet": "read_parquet"}
_BATCH_ROWS = 64 * 1024


def format_of(paths: Sequence[Path]) -> Format:
    """The format of files, by their names. Raises `InvalidArgument` if the names have none, or several."""
    found = set()
    for path in paths:
        suffixes = [one.lower() for one in path.suffixes if one.lower() not in _COMPRESSED]
        if not suffixes or suffixes[-1] not in _FORMATS:
            raise InvalidArgument(f"the name of {path} does not tell its format: say --format csv, json or parquet")
        found.add(_FORMATS[suffixes[-1]])
    if len(found) != 1:
        raise InvalidArgument(f"files of one format at a time, not of {' and '.join(sorted(found))}")
    return found.pop()


@contextmanager
def rows_of(
    paths: Sequence[Path], format: Format, on_rows: Callable[[int], object] = lambda done: None
) -> Iterator[pa.RecordBatchReader]:
    """The rows of all files, one after the other, columns by name; a column that a file lacks is null there.

    `on_rows` is called with how many have been read. Raises `InvalidArgument` for files that cannot be read so.
    """
    import pyarrow as pa

    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise InvalidArgument(f"no such file: {', '.join(missing)}")
    files = [str(path.absolute()) for path in paths]
    with TemporaryDirectory() as spill:
        connection = connect(needs="loading files", files=files, spill_folder=spill)
        try:
            names = ", ".join(map(literal, files))
            rows = connection.execute(f"SELECT * FROM {_READERS[format]}([{names}], union_by_name = true)")
            reader = rows.to_arrow_reader(_BATCH_ROWS)

            def counted() -> Iterator[pa.RecordBatch]:
                done = 0
                for batch in reader:
                    done += batch.num_rows
                    on_rows(done)
                    yield batch

            yield pa.RecordBatchReader.from_batches(reader.schema, counted())
        except connection_errors() as error:
            raise InvalidArgument(f"cannot read {', '.join(map(str, paths))} as {format}: {error}") from error
        finally:
            connection.close()


def connection_errors() -> tuple[type[Exception], ...]:
    """What DuckDB raises."""
    import duckdb

    return (duckdb.Error,)
