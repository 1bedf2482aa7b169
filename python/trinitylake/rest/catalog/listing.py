"""List and search names in key order, starting after a position. Reads little more than one page needs.

A position is a key, or a string that sorts between keys. It stays valid when objects are created or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake import _core, core
from trinitylake.definitions import parse_lakehouse_def
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef

    State = _core.Version | _core.Transaction

MAX_KEYS_AT_ONCE = 16_384
_ANY_NAME = "a"
#: A key with this character appended is the smallest string after the key.
_NEXT = "\0"
#: Separator of the parts of a namespace, and the character after it.
_DOT, _AFTER_DOT = ".", "/"


@dataclass(frozen=True)
class Listed:
    """A name, and the position after which the list continues."""

    name: str
    position: str


def objects_after(
    state: State, kind: Literal["table", "view"], namespace: str, position: str | None, n_expected: int
) -> Iterator[Listed]:
    """Yield the tables or views directly in a namespace, ascending, after `position` or from the first.

    Reads `n_expected` keys at first, then larger parts. Raises `InvalidName` for an invalid namespace.
    """
    definition = _definition(state)
    encode = core.encode_table_keys if kind == "table" else core.encode_view_keys
    size = definition.table_name_max_size_bytes if kind == "table" else definition.view_name_max_size_bytes
    prefix = str(encode([namespace], [_ANY_NAME], definition)[0])[:-size]
    keys = _Keys(state, prefix, n_expected)
    keys.resume_after(position)
    while len(found := keys.read()):
        for key, name in zip(found.to_pylist(), core.decode_keys(found, definition)["name"].to_pylist(), strict=True):
            yield Listed(name, key)


def children_after(state: State, parent: str | None, position: str | None, n_expected: int) -> Iterator[Listed]:
    """Yield the last parts of the namespaces directly below `parent`, or at the top, after `position`.

    A namespace without a key exists if another namespace is nested in it. Its position is after all nested ones.
    After each part of the keys, the remaining namespaces that are nested in the last child are skipped.
    """
    definition = _definition(state)
    above = "" if parent is None else f"{parent}{_DOT}"
    named = _ANY_NAME if parent is None else parent
    kind = str(core.encode_namespace_keys([named], definition)[0]).rstrip(" ").removesuffix(named)
    keys = _Keys(state, f"{kind}{above}", n_expected)
    keys.resume_after(position)
    child_before = None
    while len(found := keys.read()):
        names: list[str] = core.decode_keys(found, definition)["namespace"].to_pylist()
        nested = ""
        for key, name in zip(found.to_pylist(), names, strict=True):
            child, nested, _ = name[len(above) :].partition(_DOT)
            if not nested:
                yield Listed(child, key)
            elif child != child_before and not state.exists("namespace", above + child):
                yield Listed(child, f"{kind}{above}{child}{_AFTER_DOT}")
            child_before = child
        if nested:
            keys.go_after(f"{kind}{above}{child_before}{_AFTER_DOT}")


class _Keys:
    """Reads the keys with a prefix in parts of increasing size."""

    def __init__(self, state: State, prefix: str, n_expected: int) -> None:
        self._state = state
        self._prefix = prefix
        self._start = prefix
        self._n_wanted = n_expected

    def resume_after(self, position: str | None) -> None:
        """Start after a position. Raises `InvalidArgument` for a position of another list."""
        if position is not None:
            if not position.startswith(self._prefix):
                raise InvalidArgument("pageToken belongs to another list")
            self.go_after(position)

    def go_after(self, position: str) -> None:
        self._start = position + _NEXT

    def read(self) -> pa.Array:
        """Next keys; empty at the end."""
        if isinstance(self._state, _core.Version):
            stream = self._state.scan(columns=["key"], start=self._start, limit=self._n_wanted)
            found = stream.read_all()["key"].combine_chunks()
            found = found.filter(pc.starts_with(found, self._prefix))
        else:
            found = self._state.keys(self._prefix, self._start, self._n_wanted)["key"]
        if len(found):
            self.go_after(found[-1].as_py())
        # The caller reads on if its principal may see too few of the keys so far: read larger parts.
        self._n_wanted = min(4 * self._n_wanted, MAX_KEYS_AT_ONCE)
        return found


def _definition(state: State) -> LakehouseDef:
    version = state if isinstance(state, _core.Version) else state.base
    return parse_lakehouse_def(version.definition)


@dataclass(frozen=True)
class Found:
    """An object whose name contains the searched string, and the position after which the search continues."""

    kind: str
    namespace: str
    name: str
    position: str


@dataclass(frozen=True)
class Searched:
    """Result of a search in `n_keys` keys. The next search continues after `position`."""

    found: list[Found]
    n_keys: int
    position: str


#: First key of namespaces, and the key after all views.
_FIRST, _AFTER_VIEWS = "B===", "E==="


def names_with(state: _core.Version, text: str, within: str | None, position: str | None) -> Iterator[Searched]:
    """Yield the objects whose full name contains `text`, ignoring case, in key order and in parts.

    With `within`, searches only the own names of tables and views directly in that namespace. Raises
    `InvalidArgument` for an invalid position.
    """
    definition = _definition(state)
    start = _FIRST
    if position is not None:
        if not _FIRST <= position < _AFTER_VIEWS:
            raise InvalidArgument("next belongs to another search")
        start = position + _NEXT
    while True:
        stream = state.scan(columns=["key"], start=start, end=_AFTER_VIEWS, limit=MAX_KEYS_AT_ONCE)
        keys = stream.read_all()["key"].combine_chunks()
        if not len(keys):
            return
        last = keys[-1].as_py()
        objects = core.decode_keys(keys, definition)
        names = pc.coalesce(objects["name"], "")
        if within is None:
            texts = pc.binary_join_element_wise(objects["namespace"], names, _DOT)
            is_wanted = pc.match_substring(texts, text, ignore_case=True)
        else:
            is_inside = pc.equal(objects["namespace"], within)
            is_wanted = pc.and_(is_inside, pc.match_substring(names, text, ignore_case=True))
        matches = pc.indices_nonzero(is_wanted)
        rows = pa.table([objects["kind"], objects["namespace"], names, keys], ["kind", "namespace", "name", "key"])
        found = [Found(*row.values()) for row in rows.take(matches).to_pylist()]
        yield Searched(found, len(keys), last)
        start = last + _NEXT
