"""Copies text files that DuckDB cannot read to UTF-8 with one kind of line ends."""

from __future__ import annotations

import codecs
import io
import re
import shutil
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files.csv_source import delimiter_of
from trinitylake.tables.input_files.local_files import COMPRESSED, Format
from trinitylake.tables.input_files.text_files import TextOptions

#: First bytes of gzip, zstd, ZIP, xz and bzip2 files.
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"\xfd7zXZ\x00", b"BZh")
_PART_SIZE_BYTES = 8 * 1024 * 1024


def readable_path(name: str, path: Path, copy: Path, format: Format, options: TextOptions) -> Path:
    """The path of a file that DuckDB can read: `path`, or `copy`, which is written in UTF-8 with one kind of line ends.

    DuckDB cannot read big-endian UTF-16, JSON with a BOM, and CSV with several kinds of line ends. A compressed file is
    decompressed once as a check, because DuckDB does not notice a missing end or a wrong checksum.
    """
    import pyarrow as pa

    compression, is_csv = COMPRESSED.get(path.suffix.lower()), format == "csv"
    encoding = "utf-8" if format == "parquet" else options.encoding
    ends: set[bytes] = set()
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            start = part = stream.read(_PART_SIZE_BYTES)
            while part and (is_csv or compression is not None):
                if is_csv:
                    part += stream.read(1) if part.endswith(b"\r") else b""
                    ends |= _line_ends(part)
                part = stream.read(_PART_SIZE_BYTES)
        if encoding == "utf-8":
            if start.startswith(_MAGIC):
                raise InvalidArgument(f"{name} is compressed: decompress it, or give it a name with .gz or .zst")
            if b"\0" in start[:4]:
                raise InvalidArgument(f"{name} is not UTF-8, but probably UTF-16: use --encoding utf-16")
            if len(ends) < 2 and (is_csv or not start.startswith(codecs.BOM_UTF8)):
                return path
            encoding = "utf-8-sig"
        # Bytes that are not UTF-8 are copied, so that DuckDB's error has the line.
        errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"
        with (
            pa.input_stream(str(path), compression=compression) as stream,
            io.TextIOWrapper(stream, encoding, errors, newline="") as text,
            copy.open("w", encoding="utf-8", errors=errors, newline="") as target,
        ):
            if is_csv:
                target.writelines(_with_one_line_end(text, options))
            else:
                shutil.copyfileobj(text, target, _PART_SIZE_BYTES)
    except UnicodeError as error:
        raise InvalidArgument(f"{name} has another encoding than {encoding}: {error}") from error
    except OSError as error:
        raise InvalidArgument(
            f"{name}: the {compression} file is cut or damaged, and nothing was loaded: {error}"
        ) from error
    return copy


def _with_one_line_end(lines: Iterator[str], options: TextOptions) -> Iterator[str]:
    """Lines of CSV that end with \\n. Line breaks in quotes are not changed."""
    skipped = list(islice(lines, options.skip))
    header = next(lines, "")
    delimiter = re.escape(delimiter_of(header, options))
    whole = re.compile(rf'(?:^|(?<={delimiter}))"(?:[^"]|"")*+"')
    opening, rest_of_quoted = re.compile(rf'(?:^|{delimiter})"'), re.compile(r'(?:[^"]|"")*+"')
    is_quoted = False
    for number, line in enumerate(chain(skipped, [header], lines)):
        if number >= len(skipped) and (is_quoted or '"' in line):
            end = rest_of_quoted.match(line) if is_quoted else None
            unquoted = line if end is None else f" {line[end.end() :]}"  # with a space, because no field begins here
            if not is_quoted or end is not None:
                is_quoted = opening.search(whole.sub("", unquoted)) is not None
        yield line if is_quoted or not line.endswith(("\r", "\n")) else line.rstrip("\r\n") + "\n"


def _line_ends(part: bytes) -> set[bytes]:
    """The kinds of line ends in a part of a file. The part must not end within a line end."""
    both = part.count(b"\r\n")
    counts = {b"\r\n": both, b"\n": part.count(b"\n") - both, b"\r": part.count(b"\r") - both}
    return {end for end, count in counts.items() if count}
