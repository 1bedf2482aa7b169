"""Names of objects and columns as a statement in SQL writes them, for the completion of the shell.

Names are anybody's text. One that SQL would read as something else stands in quotes, since what is completed is run: a
table may be called `x; DROP TABLE y`. What cannot be seen is not offered.
"""

from __future__ import annotations

from functools import cache

from trinitylake.tables.sql_sandbox import quoted

#: Levels of a namespace that SQL takes without quotes.
_MAX_LEVELS = 2


def object_name(full_name: str) -> str | None:
    """The name of a table or view; None for one that is not offered."""
    namespace, _, name = full_name.rpartition(".")
    written = namespace_name(namespace), column_name(name)
    return f"{written[0]}.{written[1]}" if written[0] and written[1] else None


def namespace_name(full_name: str) -> str | None:
    """The name of a namespace; None for one that is not offered."""
    levels = full_name.split(".")
    if len(levels) <= _MAX_LEVELS and all(map(_is_plain, levels)):
        return full_name
    return column_name(full_name, is_plain=False)


def column_name(name: str, is_plain: bool | None = None) -> str | None:
    """The name of a column; None for one that is not offered."""
    if not name.isprintable():
        return None
    return name if (_is_plain(name) if is_plain is None else is_plain) else quoted(name)


def _is_plain(name: str) -> bool:
    """Whether DuckDB takes it for a name as it stands, and not for a word of its own."""
    return name.isascii() and name.isidentifier() and name.lower() not in _words()


@cache
def _words() -> frozenset[str]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category != 'unreserved'")
        return frozenset(word for (word,) in found.fetchall())
