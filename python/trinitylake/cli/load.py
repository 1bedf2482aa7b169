"""`load`: rows of files into a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.text import Text

from trinitylake.base.qualified_names import split
from trinitylake.cli.command import Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.output import counted, counting, emit, grid, size_text
from trinitylake.definitions import as_schema
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.tables.file_rows import format_of, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.lakehouse.lakehouse import Lakehouse


@command
def load(
    root: Root,
    files: Annotated[list[Path], typer.Argument(help="CSV, JSON or Parquet files, also .gz and .zst.")],
    table: Annotated[str, typer.Argument(help="The table.", autocompletion=object_names("table"))],
    mode: Annotated[
        Literal["append", "overwrite", "upsert"],
        typer.Option("--mode", help="Append rows, replace all rows, or update and insert rows by key."),
    ] = "append",
    on: Annotated[
        list[str] | None,
        typer.Option("--on", help="Key column for --mode upsert, repeatable; default: the primary key."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create the table and its namespace if they do not exist.")
    ] = False,
    format: Annotated[
        Literal["csv", "json", "parquet"] | None,
        typer.Option("--format", "-f", help="Format of the files; default: by their names."),
    ] = None,
    message: Message = "",
    author: Author = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the columns, and write nothing.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Load CSV, JSON or Parquet files into a table, in one version.

    The files are read as a stream in bounded memory; only --mode upsert keeps all rows in memory.
    """
    if on and mode != "upsert":
        raise InvalidArgument("--on needs --mode upsert")
    lake = open_lakehouse(root, options)
    known = format or format_of(files)
    size = sum(path.stat().st_size for path in files if path.is_file())
    with counting("reading") as on_progress, rows_of(files, known, lambda done: on_progress("rows", done)) as rows:
        columns = [{"name": column.name, "type": str(column.type)} for column in as_schema(rows.schema).columns]
        document: dict[str, Any] = {
            "table": table,
            "format": known,
            "files": len(files),
            "size_bytes": size,
            "columns": columns,
        }
        if dry_run:
            picture = grid("column", "type")
            for column in columns:
                picture.add_row(Text(column["name"]), Text(column["type"]))
            text = Text(f"{counted(len(files), f'{known} file')}, {size_text(size)}, with the columns")
            emit(document | {"version": None}, Group(text, picture), as_json)
            return
        version, summary = _load(lake, table, rows, mode, on, create, message, author)
    emit(document | {"version": version, "summary": summary}, Text(f"version {version}: {summary}"), as_json)


def _load(
    lake: Lakehouse,
    name: str,
    rows: pa.RecordBatchReader,
    mode: str,
    on: list[str] | None,
    create: bool,
    message: str,
    author: str,
) -> tuple[int | None, str]:
    """Load all rows in one transaction; returns its version and its summary for the log."""
    with lake.transaction(message=message, author=author) as transaction:
        if not transaction.exists(name):
            if not create:
                raise ObjectNotFound(f"table {name} does not exist: use --create to create it")
            transaction.create_namespace(split(name)[0], exist_ok=True)
            table = transaction.create_table(name, rows.schema)
        else:
            table = transaction.table(name)
        if mode == "overwrite":
            table.overwrite(rows)
        elif mode == "upsert":
            table.upsert(rows, on)
        else:
            table.append(rows)
    return transaction.version, transaction.summary
