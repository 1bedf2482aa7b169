"""DuckDB as a calculator: a connection that reaches nothing but the rows that are registered in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trinitylake.errors import InvalidArgument

#: No file, no network, no extension, no object of the program around it, and no way to change that.
_SANDBOX: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",  # else the folder for it can be read and written
    "lock_configuration": "true",
}


@contextmanager
def sandbox(subject: str, *, needs: str = "a check in SQL", quotes_rows: bool = False) -> Iterator[Any]:
    """A DuckDB connection that reaches nothing but what is registered in it.

    Args:
        subject: what errors begin with.
        needs: what it is for, told if DuckDB is not installed.
        quotes_rows: whether DuckDB's words about a query that has begun to run may be shown, which quote rows.

    Raises `InvalidArgument` for what DuckDB refuses in the block, with its words if they can only be about the text.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InvalidArgument(f"{needs} needs DuckDB: pip install 'trinitylake[sql]'") from error
    about_the_text = (
        duckdb.ParserException,
        duckdb.SyntaxException,
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.PermissionException,
        duckdb.NotImplementedException,
    )
    connection: Any = duckdb.connect(":memory:", config=_SANDBOX)
    try:
        yield connection
    except about_the_text as error:
        raise InvalidArgument(f"{subject}: {error}") from None
    except duckdb.Error as error:
        if quotes_rows:
            raise InvalidArgument(f"{subject} broke off: {error}") from error
        raise InvalidArgument(
            f"{subject} broke off with {type(error).__name__}; what DuckDB says is not shown, since it may quote rows"
        ) from None
    finally:
        connection.close()


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
