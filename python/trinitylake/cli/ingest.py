"""`ingest`: append JSON lines or CSV from a pipe or a growing file to a table."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import typer
from rich.text import Text

from trinitylake.base.durations import milliseconds
from trinitylake.cli.command import Lake, LogInfo, Output, command, object_names
from trinitylake.cli.output import counted, counting
from trinitylake.errors import InvalidArgument
from trinitylake.tables.ingestion.producers import Producer
from trinitylake.tables.ingestion.rejected_rows import TextRows
from trinitylake.tables.ingestion.text_rows import CsvRows, Records, json_rows

#: Seconds between two reads of a followed file.
_POLL_SECONDS = 0.1
_PART_SIZE_BYTES = 1 << 20
#: Size of the collected rows that starts a commit before the delay has passed.
_CHUNK_SIZE_BYTES = 16 << 20
#: Number of bytes before a producer's position whose checksum identifies the input.
_CHECKED_SIZE_BYTES = 4096


@command
def ingest(
    lake: Lake,
    log: LogInfo,
    table: str = typer.Argument(..., help="An existing table.", autocompletion=object_names("table")),
    file: str = typer.Argument("-", help="A file, or - for standard input."),
    follow: bool = typer.Option(False, "--follow", help="At the end of the file, wait for more rows until Ctrl-C."),
    format: Literal["csv", "json"] | None = typer.Option(
        None, "--format", "-f", help="JSON lines or CSV; default: csv for a file named .csv, else json."
    ),
    delimiter: str = typer.Option(",", help="Character between the fields of CSV."),
    header: bool = typer.Option(
        True, "--header/--no-header", help="Whether CSV has a header; without one, fields are in column order."
    ),
    nulls: list[str] | None = typer.Option(
        None, "--null", metavar="TEXT", help="Text that means NULL in CSV, in addition to the empty field; repeatable."
    ),
    producer: str | None = typer.Option(
        None, help="Name of the stream; a second run continues after the bytes that the table has."
    ),
    dead_letter: str | None = typer.Option(
        None, metavar="TABLE", help="Write rows that do not fit to this table, and continue."
    ),
    max_delay: str = typer.Option("1s", metavar="TIME", help="How long rows are collected before a commit."),
) -> Output:
    """Append JSON lines or CSV to a table as they arrive, in about one version a second.

    With --producer each row is written once, even if the command is killed and run again: the number of ingested bytes
    is stored in the same commit as the rows. Without --producer a second run writes all rows again. Values of
    timestamptz columns need an offset, such as Z.
    """
    delay_seconds = milliseconds(max_delay, "--max-delay") / 1000
    if follow and file == "-":
        raise InvalidArgument("--follow needs a file; standard input is always read until it ends")
    target = lake.table(table)
    name = f"{table}: {'standard input' if file == '-' else file}"
    is_csv = (format or ("csv" if Path(file).suffix.lower() == ".csv" else "json")) == "csv"
    done = rejected = end = 0
    version: int | None = None
    with contextlib.ExitStack() as stack:
        source = _Source(stack.enter_context(_opened(file, follow)), is_csv)
        on_progress = stack.enter_context(counting("ingesting", "rows"))
        # Each chunk is a commit of its own. If the writer collected several chunks, it could commit later chunks
        # although a row of an earlier chunk does not fit.
        open_writer = partial(target.writer, max_delay="0 s", producer=producer, dead_letter_table=dead_letter, **log)
        writer = stack.enter_context(open_writer())
        last = writer.last_sequence() if producer is not None else None
        rows_of: Callable[[Iterable[bytes], int], TextRows] = json_rows
        if is_csv:
            rows_of = CsvRows(target.schema.names, delimiter, nulls or ())
            if header:
                rows_of.read_header(source.header())
        if producer is not None and last is not None:
            source.skip_to(last, Producer(lake.begin()._state(), producer, target.id).checksum)
        if follow:
            stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for chunk in source.chunks(delay_seconds):
            parts = [chunk]
            while parts:
                part = parts.pop()
                rows = rows_of(part.records, part.line or 1)._replace(checksum=_checksum(part.tail))
                future = writer.write(rows, sequence=None if producer is None else part.end)
                try:
                    version = future.result()
                except InvalidArgument as error:
                    if len(part.records) == 1:
                        place = name if part.line is not None else f"{name}, lines after byte {part.begin:,}"
                        raise InvalidArgument(f"{place}: {error}; use --dead-letter TABLE") from error
                    # Write the halves, so that all rows before the row that does not fit are committed. This needs a
                    # new writer, because a writer of a producer refuses rows after a failure.
                    writer = stack.enter_context(open_writer())
                    parts += reversed(part.halves())
                    continue
                done, rejected, end = done + len(rows.rows), rejected + future.rows_rejected, part.end
                on_progress("ingested", done)
    text = Text(f"{counted(done - rejected, 'row')} ingested into {table}")
    if rejected:
        text.append(f"\n{counted(rejected, 'row')} rejected, see {dead_letter}", "yellow")
    document = {"table": table, "rows": done - rejected, "rejected": rejected, "version": version, "bytes": end}
    return document, text


class _Chunk(NamedTuple):
    """Consecutive records of the input.

    Attributes:
        line: number of the line where the first record begins; None if it is unknown.
        begin: position of the first byte in the input.
        before: the last bytes before `begin`, at most `_CHECKED_SIZE_BYTES`.
    """

    records: list[bytes]
    line: int | None
    begin: int
    before: bytes

    @property
    def end(self) -> int:
        """Position in the input after the last byte."""
        return self.begin + sum(map(len, self.records))

    @property
    def tail(self) -> bytes:
        """The last bytes before `end`, at most `_CHECKED_SIZE_BYTES`."""
        return (self.before + b"".join(self.records))[-_CHECKED_SIZE_BYTES:]

    def halves(self) -> tuple[_Chunk, _Chunk]:
        """Two chunks with the first and the second half of the records."""
        half = len(self.records) // 2
        first = self._replace(records=self.records[:half])
        line = None if self.line is None else self.line + _count_lines(first.records)
        return first, _Chunk(self.records[half:], line, first.end, first.tail)


def _checksum(tail: bytes) -> str:
    return f"{zlib.crc32(tail):08x}"


def _count_lines(records: list[bytes]) -> int:
    return sum(record.count(b"\n") for record in records)


class _File:
    """A file, which may grow if `followed` is its path. The methods are those of `_Pipe`."""

    def __init__(self, stream: FileIO, followed: Path | None) -> None:
        self._stream, self._followed, self._before = stream, followed, b""

    def read(self) -> bytes | None:
        # Check for a rotation before the read: a program can write its last rows just before another file gets the
        # name.
        is_rotated = self._followed is not None and self._is_rotated(self._followed)
        if self._before:
            self._stream.seek(-len(self._before), os.SEEK_CUR)
        read = self._stream.read(len(self._before) + _PART_SIZE_BYTES)
        if not read.startswith(self._before):
            raise InvalidArgument("the file was truncated or changed: run again with another --producer")
        part = read[len(self._before) :]
        if self._followed is None:
            return part or None
        self._before = read[-_CHECKED_SIZE_BYTES:]
        if is_rotated and not part:
            raise InvalidArgument("another file has the name of the followed file: run again with another --producer")
        return part

    def _is_rotated(self, followed: Path) -> bool:
        # During a rotation, no file has the name until the next file is created.
        with contextlib.suppress(FileNotFoundError):
            return not os.path.samestat(os.fstat(self._stream.fileno()), followed.stat())
        return False

    def seek(self, end: int) -> bytes | None:
        size = min(end, _CHECKED_SIZE_BYTES)
        self._stream.seek(end - size)
        before = self._stream.read(size)
        self._before = before if self._followed is not None else b""
        return before


class _Pipe:
    """Standard input. A thread reads it, because a read blocks while the other program writes nothing."""

    def __init__(self, stream: BinaryIO) -> None:
        self._parts: queue.Queue[bytes | None] = queue.Queue(maxsize=2 * _CHUNK_SIZE_BYTES // _PART_SIZE_BYTES)
        threading.Thread(target=self._read_all, args=(stream,), daemon=True).start()

    def _read_all(self, stream: BinaryIO) -> None:
        while part := stream.read1(_PART_SIZE_BYTES):  # type: ignore[attr-defined]
            self._parts.put(part)
        self._parts.put(None)

    def read(self) -> bytes | None:
        """The next bytes; empty if none have arrived yet; None at the end."""
        try:
            return self._parts.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return b""

    def seek(self, end: int) -> bytes | None:
        """Jump to the position `end`, and return the last bytes before it; None if the input cannot jump."""
        return None


@contextlib.contextmanager
def _opened(file: str, follows: bool) -> Iterator[_File | _Pipe]:
    if file == "-":
        yield _Pipe(sys.stdin.buffer)
        return
    try:
        stream = open(file, "rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield _File(stream, Path(file) if follows else None)


class _Source:
    """The records of an input. After a jump into a file, the numbers of lines are unknown."""

    def __init__(self, input: _File | _Pipe, has_quotes: bool) -> None:
        self._line: int | None = 1
        self._input = input
        self._records = Records(has_quotes)
        self._ended: list[bytes] = []
        self._end = 0
        self._before = b""
        self._is_at_end = False

    def header(self) -> bytes:
        """Remove and return the first record, without its line end."""
        while not self._ended and not self._is_at_end:
            self._read()
        if not self._ended:
            raise InvalidArgument("the input has no header: it is empty")
        record = self._ended.pop(0)
        self._pass([record])
        return record.rstrip(b"\r\n")

    def skip_to(self, end: int, checksum: str) -> None:
        """Skip the first `end` bytes.

        Raises `InvalidArgument` if no record ends at this position, or if the bytes before it have another checksum.
        """
        if end <= self._end:
            return
        if (before := self._input.seek(end)) is not None:
            self._line, self._before = None, before
            is_record_end = len(before) == min(end, _CHECKED_SIZE_BYTES) and before.endswith(b"\n")
            self._ended, self._records.rest, self._end, self._is_at_end = [], b"", end, False
        else:
            while self._end < end and (self._ended or not self._is_at_end):
                if self._ended:
                    self._pass([self._ended.pop(0)])
                else:
                    self._read()
            is_record_end = self._end == end
        if not is_record_end or checksum not in ("", _checksum(self._before)):
            raise InvalidArgument(
                f"the producer has ingested {end:,} bytes, and this input does not begin with them: give it another "
                "--producer; after a log rotation, ingest the rest of the former file first"
            )

    def chunks(self, delay_seconds: float) -> Iterator[_Chunk]:
        """Yield the records that arrive within `delay_seconds` as one chunk.

        If the input cannot be read any more, the records before that are yielded first, and then the error is raised.
        """
        chunk: list[bytes] = []
        size_bytes, due = 0, 0.0
        failure: InvalidArgument | None = None
        while chunk or self._ended or not self._is_at_end:
            if not self._ended:
                try:
                    self._read()
                except InvalidArgument as error:
                    failure, self._is_at_end = error, True
            if self._ended and not chunk:
                due = time.monotonic() + delay_seconds
            chunk += self._ended
            size_bytes += sum(map(len, self._ended))
            self._ended = []
            if chunk and (self._is_at_end or size_bytes >= _CHUNK_SIZE_BYTES or time.monotonic() >= due):
                yield _Chunk(chunk, self._line, self._end, self._before)
                self._pass(chunk)
                chunk, size_bytes = [], 0
        if failure is not None:
            raise failure

    def _pass(self, records: list[bytes]) -> None:
        self._end += sum(map(len, records))
        self._before = (self._before + b"".join(records))[-_CHECKED_SIZE_BYTES:]
        if self._line is not None:
            self._line += _count_lines(records)

    def _read(self) -> None:
        part = self._input.read()
        if part is None:
            self._is_at_end = True
            if self._records.rest:
                self._ended, self._records.rest = [self._records.rest], b""
        elif part:
            self._ended = self._records(part)
        else:
            time.sleep(_POLL_SECONDS)
