"""Replacement of a catalog name in an SQL statement."""

from __future__ import annotations

from trinitylake.iceberg_storage.view_names import tokens_of

#: Words before a name that consists of a catalog and a namespace.
_BEFORE_NAMESPACES = {"database", "databases", "exists", "from", "in", "namespace", "schema", "use"}


def in_catalog(statement: str, named: str, meant: str) -> str:
    """The statement with names that begin with one catalog beginning with another.

    A name of three parts is one of a table; one of two is, after words such as `USE` and `IN`, one of a namespace. Any
    other is a column's, whose table is called as the catalog is.
    """
    tokens = tokens_of(statement)
    at = [number for number, (kind, _) in enumerate(tokens) if kind != "other"]
    result = [text for _, text in tokens]
    for place, number in enumerate(at):
        kind, text = tokens[number]
        before = tokens[at[place - 1]][1].lower() if place else ""
        if kind not in ("word", "quoted") or text.strip("`") != named or before == ".":
            continue
        parts, following = 0, place + 1
        while following + 1 < len(at) and tokens[at[following]][1] == ".":
            if tokens[at[following + 1]][0] not in ("word", "quoted"):
                break
            parts, following = parts + 1, following + 2
        if parts >= 2 or (before in _BEFORE_NAMESPACES and (parts == 1 or before == "use")):
            result[number] = meant
    return "".join(result)
