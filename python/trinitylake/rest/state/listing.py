"""Lists the names in a namespace from a given name on, in key order, reading no more than one page needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import pyarrow.compute as pc

from trinitylake import core
from trinitylake.definitions import parse_lakehouse_def

if TYPE_CHECKING:
    from trinitylake import _core

MAX_KEYS_AT_ONCE = 16_384
_ANY_NAME = "a"
#: After a key: the least that comes after it.
_NEXT = "\0"


def names_after(
    version: _core.Version, kind: Literal["table", "view"], namespace: str, after: str | None, n_expected: int
) -> Iterator[str]:
    """The names of the tables or views in exactly that namespace, ascending, after a name or from the first on.

    They are read `n_expected` at a time, and more if all of them are taken. Raises `InvalidName` for a name that no
    object can have.
    """
    definition = parse_lakehouse_def(version.definition)
    is_table = kind == "table"
    encode = core.encode_table_keys if is_table else core.encode_view_keys
    size = definition.table_name_max_size_bytes if is_table else definition.view_name_max_size_bytes
    first = str(encode([namespace], [_ANY_NAME], definition)[0])[:-size]
    start = first if after is None else str(encode([namespace], [after], definition)[0]) + _NEXT
    n_wanted = n_expected
    while True:
        keys = version.scan(columns=["key"], start=start, limit=n_wanted).read_all()["key"].combine_chunks()
        inside = keys.filter(pc.starts_with(keys, first))
        yield from core.decode_keys(inside, definition)["name"].to_pylist()
        if len(inside) < n_wanted:
            return
        start = inside[-1].as_py() + _NEXT
        n_wanted = min(4 * n_wanted, MAX_KEYS_AT_ONCE)  # few of those so far are shown
