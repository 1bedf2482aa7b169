"""Columns of Hive-style paths, which have folders such as `year=2024/country=de`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa

from trinitylake.errors import InvalidArgument

WAY_OUT = "use --no-hive-partitioning to ignore the folders"
_NULL = "__HIVE_DEFAULT_PARTITION__"


def path_texts(names: Sequence[str]) -> pa.Table:
    """The columns of paths or URLs, as text, with one row for each path. Percent-encoded characters are decoded.

    Raises `InvalidArgument` for paths with different columns, a path with two folders of one column, and encoded
    characters that are not UTF-8.
    """
    rows = list(map(_values, names))
    for name, row in zip(names, rows, strict=True):
        if row.keys() != rows[0].keys():
            raise InvalidArgument(
                f"the path of {names[0]} has the columns {_shown(rows[0])}, and that of {name} has {_shown(row)}: load "
                f"the files one by one, or {WAY_OUT}"
            )
    return pa.table({key: pa.array([row[key] for row in rows], pa.string()) for key in rows[0]})


def _values(name: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for folder in name.split("/")[:-1]:
        key, separator, value = folder.partition("=")
        if not (key and separator):
            continue
        try:
            key, value = unquote(key, errors="strict"), unquote(value, errors="strict")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{name}: the folder {folder} is not UTF-8; {WAY_OUT}") from error
        if key in values:
            raise InvalidArgument(f"{name}: two folders have the name {key}; {WAY_OUT}")
        values[key] = None if value == _NULL else value
    return values


def _shown(values: dict[str, str | None]) -> str:
    return ", ".join(values) or "(none)"
