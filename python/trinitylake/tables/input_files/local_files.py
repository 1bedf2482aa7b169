"""Local files for paths, glob patterns, URLs on an object store, and standard input."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import Literal

from trinitylake import _core
from trinitylake.errors import InvalidArgument

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
#: Compressions of files that are decompressed, by suffix.
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_OTHER_COMPRESSIONS = (".bz2", ".xz", ".zip", ".7z", ".lz4")
#: Files on an object store are fetched in parts of this size.
_PART_SIZE_BYTES = 8 * 1024 * 1024


def format_of(names: Sequence[str]) -> Format:
    """The format of files, by their names. Raises `InvalidArgument` if a name has no known format, or if they differ.

    Standard input, `-`, has the format of the other files.
    """
    if all(name == "-" for name in names):
        raise InvalidArgument("the format of standard input is unknown: use --format csv, json or parquet")
    found = set()
    for name in names:
        if name == "-":
            continue
        suffixes = [one.lower() for one in Path(name).suffixes if one.lower() not in COMPRESSED]
        if suffixes and suffixes[-1] in _OTHER_COMPRESSIONS:
            raise InvalidArgument(
                f"{name} has an unsupported compression: decompress it; only .gz and .zst files are decompressed"
            )
        if not suffixes or suffixes[-1] not in _FORMATS:
            raise InvalidArgument(f"the name {name} has no known suffix: use --format csv, json or parquet")
        found.add(_FORMATS[suffixes[-1]])
    if len(found) != 1:
        raise InvalidArgument(f"all files must have one format, not {' and '.join(sorted(found))}")
    return found.pop()


def local_files(patterns: Sequence[str], storage_options: Mapping[str, str], folder: Path) -> list[tuple[str, Path]]:
    """The input files as pairs of a name for messages and an absolute local path.

    Args:
        patterns: paths, glob patterns, URLs on an object store, or `-` for standard input.
        storage_options: for URLs.
        folder: for copies of standard input and of files on an object store.

    Raises `InvalidArgument` for a pattern without a file.
    """
    files: list[tuple[str, Path]] = []
    for pattern in patterns:
        if pattern == "-":
            files.append((pattern, folder / "stdin"))
            with files[-1][1].open("wb") as target:
                shutil.copyfileobj(sys.stdin.buffer, target)
        elif "://" in pattern:
            files += _fetched(pattern, storage_options, folder / str(len(files)))
        elif Path(pattern).is_file():
            files.append((pattern, Path(pattern).absolute()))
        else:
            matches = [Path(one) for one in sorted(glob(pattern, recursive=True))] if has_magic(pattern) else []
            files += [(str(one), one.absolute()) for one in matches if one.is_file()]
            if not any(one.is_file() for one in matches):
                is_folder = Path(pattern).is_dir()
                why = f"it is a folder; name its files, as in '{pattern}/*.csv'" if is_folder else "no such file"
                raise InvalidArgument(f"{pattern}: {why}")
    return files


def _matches(folders: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a path matches a pattern, as in `glob`: `**` stands for any number of folders, `*` for no slash."""
    if not patterns or not folders:
        return not folders and set(patterns) <= {"**"}
    if patterns[0] == "**" and _matches(folders, patterns[1:]):
        return True
    rest = patterns if patterns[0] == "**" else patterns[1:]
    return fnmatchcase(folders[0], patterns[0]) and _matches(folders[1:], rest)


def _fetched(pattern: str, storage_options: Mapping[str, str], folder: Path) -> list[tuple[str, Path]]:
    """Copy the files of a URL to a local folder. The last segments of the URL may be a pattern."""
    parts = pattern.split("/")
    fixed = next((number for number, part in enumerate(parts) if has_magic(part)), len(parts) - 1)
    root = "/".join(parts[:fixed])
    storage = _core.Storage(root, storage_options)
    name = "/".join(parts[fixed:])
    if has_magic(name):
        paths = [path for path, _, _ in storage.list("") if _matches(path.split("/"), parts[fixed:])]
    else:
        paths = [name] if storage.exists(name) else []
    if not paths:
        raise InvalidArgument(f"{pattern}: no such file")
    found = []
    for number, path in enumerate(sorted(paths)):
        local = folder / str(number) / PurePosixPath(path).name
        local.parent.mkdir(parents=True)
        size_bytes = storage.size(path)
        with local.open("wb") as target:
            for offset in range(0, size_bytes, _PART_SIZE_BYTES):
                target.write(storage.get_range(path, offset, min(_PART_SIZE_BYTES, size_bytes - offset)))
        found.append((f"{root}/{path}", local))
    return found
