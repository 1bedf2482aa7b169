"""DuckDB connections that can access only the rows and files that they are given.

This is the first of two rules that confine a query; the second limits the functions that it may call
(`queries/parsed_query.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument

#: Scans produce large strings, so DuckDB must as well (`data_files/arrow_schema.py`).
_ARROW: dict[str, str | bool | int | float | list[str]] = {"arrow_large_buffer_size": "true"}
#: Queries cannot read Python objects of the surrounding program.
_WITHOUT_VARIABLES: dict[str, str | bool | int | float | list[str]] = {"python_enable_replacements": "false"}
#: No network, no extension.
_CLOSED: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "temp_directory": "",  # else the folder for it can be read and written
}
#: Forbids all further settings.
_LOCKED = {"lock_configuration": "true"}
#: DuckDB's message after Ctrl-C.
_INTERRUPTED = "Query interrupted"
_SMALL_LETTERS = str.maketrans(ascii_uppercase, ascii_lowercase)


def connect(
    *,
    needs: str,
    files: Sequence[str] = (),
    spill_folder: str = "",
    without_optimizers: str = "",
    is_plan: bool = False,
    is_open: bool = False,
    time_zone: str = "UTC",
    limits: Mapping[str, str | bool | int | float | list[str]] | None = None,
) -> Any:
    """An in-memory DuckDB connection that can read only `files`; SQL cannot change that.

    Args:
        needs: the feature, for the error if DuckDB is not installed.
        spill_folder: folder for data that does not fit into memory; "" for none.
        is_plan: whether the connection is only for planning.
        is_open: whether it may access all files and hosts that this process can access.
        time_zone: zone of times without an offset, whatever the zone of the machine.
        limits: DuckDB settings that limit memory and threads.

    Raises `NotInstalled` without DuckDB.
    """
    with optional_dependency(needs):
        import duckdb
    settings = {"disabled_optimizers": without_optimizers, **_WITHOUT_VARIABLES, **_ARROW}
    if is_plan:
        settings["threads"] = 1
    settings |= limits or {}
    if not is_open:
        settings |= _CLOSED | ({"temp_directory": spill_folder} if spill_folder else {})
    # Set one by one: DuckDB applies a group of settings in any order, and refuses folders after access is disabled.
    connection: Any = duckdb.connect(":memory:", config=settings)
    connection.execute(f"SET GLOBAL TimeZone = {literal(time_zone)}")
    if is_open:
        return connection
    if files:
        connection.execute(f"SET allowed_paths = [{', '.join(map(literal, files))}]")
    connection.execute("SET enable_external_access = false")
    for name, value in _LOCKED.items():
        connection.execute(f"SET {name} = {value}")
    return connection


#: Columns of the library, which DuckDB suggests in errors.
_OWN_COLUMN = re.compile(r'(, )?"trinitylake:[^"]*"')


@contextmanager
def refusals(subject: str, *, quotes_rows: bool, quotes_text: bool = True) -> Iterator[None]:
    """Convert DuckDB's errors in the block to `InvalidArgument`; the message is kept if it cannot quote rows.

    Args:
        quotes_rows: whether messages of DuckDB about a running query, which may quote rows, are shown.
        quotes_text: whether messages may quote the SQL, because the caller wrote it.
    """
    import duckdb

    def words(error: Exception) -> str:
        if quotes_text:
            return str(error)
        text = _OWN_COLUMN.sub("", str(error).partition("\n\nLINE ")[0])
        return text.replace("bindings: , ", "bindings: ").removesuffix("\nCandidate bindings: ")

    about_the_text = (
        duckdb.ParserException,
        duckdb.SyntaxException,
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.PermissionException,
        duckdb.NotImplementedException,
    )
    try:
        yield
    except duckdb.InterruptException:  # Ctrl-C while DuckDB computes in the thread that got it
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if str(error) == _INTERRUPTED:
            raise KeyboardInterrupt from None
        raise
    except about_the_text as error:
        raise InvalidArgument(f"{subject}: {words(error)}") from None
    except duckdb.Error as error:
        if quotes_rows:
            raise InvalidArgument(f"{subject} failed: {words(error)}") from error
        raise InvalidArgument(
            f"{subject} failed with {type(error).__name__}; DuckDB's message is not shown, since it may quote rows"
        ) from None


@contextmanager
def sandbox(subject: str, *, needs: str, quotes_rows: bool = False) -> Iterator[Any]:
    """A connection for one block, with access only to objects that are registered in it. Raises as `refusals` does."""
    connection = connect(needs=needs)
    try:
        with refusals(subject, quotes_rows=quotes_rows):
            yield connection
    finally:
        connection.close()


def arrow_result(connection: Any, sql: str, parameters: Any = None) -> Any:
    """The result of a query for `to_arrow_table` and `to_arrow_reader`, which streams.

    DuckDB 1.5 streams the result of `execute` and materializes a relation; 2.0 does the opposite.
    """
    if hasattr(connection, "complete"):  # since DuckDB 2.0
        return connection.sql(sql, params=parameters)
    return connection.execute(sql, parameters)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def unfiltered(column: str) -> str:
    """SQL expression for a column that prevents DuckDB from pushing filters on it down to Arrow.

    **Only DuckDB filters rows of Arrow.** For Arrow, NaN is neither larger than a number nor equal to itself; it cannot
    compare UUIDs; and it gets some constants as Python objects, which cannot hold dates outside of the years 1 to 9999.
    """
    return f"coalesce({column}, NULL)"


def folded(name: str) -> str:
    """A name with A to Z in lower case: names that are equal then are equal for DuckDB."""
    return name.translate(_SMALL_LETTERS)


def names_in_query(columns: Iterable[str]) -> list[str]:
    """The names of columns in a query, which ignores case.

    A column whose name is equal to an earlier one gets a number after its name, as in DuckDB.
    """
    taken: set[str] = set()
    names = []
    for column in columns:
        name, number = column, 0
        while folded(name) in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(folded(name))
        names.append(name)
    return names


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree or plan of DuckDB, each before its children."""
    if isinstance(tree, dict):
        yield tree
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes_of(child)
