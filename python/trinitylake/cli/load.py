"""`load`: rows of files into a table."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich import filesize
from rich.console import Group
from rich.text import Text

from trinitylake.base.arguments import hint
from trinitylake.base.qualified_names import split
from trinitylake.cli.command import (
    Json,
    LogInfo,
    Options,
    Output,
    Root,
    command,
    key_values,
    object_names,
    open_lakehouse,
    storage_options,
)
from trinitylake.cli.output import counted, counting, emit_warning, grid
from trinitylake.definitions import as_schema
from trinitylake.definitions.sql_types import Type, parse_type
from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.tables.input_files.local_files import format_of
from trinitylake.tables.input_files.reader import input_files
from trinitylake.tables.input_files.text_conversion import is_convertible
from trinitylake.tables.input_files.text_sources import ENCODINGS, TextOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.tables.table import Table

#: Maximum number of bad rows with `--bad-rows` and without `--max-bad-rows`. Bad rows are kept in memory.
_BAD_ROWS_MAX = 10_000


@command
def load(
    root: Root,
    log: LogInfo,
    files: list[str] = typer.Argument(
        ..., help="CSV, JSON or Parquet files, also .gz and .zst: paths, patterns, URLs of the store, or -."
    ),
    table: str = typer.Argument(..., help="The table.", autocompletion=object_names("table")),
    mode: Literal["append", "overwrite", "upsert"] = typer.Option(
        "append", "--mode", help="Append rows, replace all rows, or update and insert rows by key."
    ),
    on: list[str] | None = typer.Option(
        None, "--on", help="Key column for --mode upsert, repeatable; default: the primary key."
    ),
    create: bool = typer.Option(False, "--create", help="Create the table and its namespace if they do not exist."),
    partition_by: list[str] | None = typer.Option(
        None, "--partition-by", metavar="EXPRESSION", help='With --create: such as "day(ts)", repeatable.'
    ),
    primary_key: list[str] | None = typer.Option(
        None, "--primary-key", metavar="COLUMN", help="With --create, repeatable."
    ),
    evolve_schema: bool = typer.Option(
        False, "--evolve-schema", help="Add columns that the table lacks, and widen types."
    ),
    format: Literal["csv", "json", "parquet"] | None = typer.Option(
        None, "--format", "-f", help="Format of the files; default: by their names."
    ),
    types: list[str] | None = typer.Option(
        None, "--type", metavar="COLUMN=TYPE", help="SQL type of a column of CSV or JSON, repeatable."
    ),
    nulls: list[str] | None = typer.Option(
        None, "--null", metavar="TEXT", help="Text that is NULL in CSV, besides the empty field; repeatable."
    ),
    delimiter: str = typer.Option("", help="Between fields of CSV; default: by the header."),
    decimal: Literal[".", ","] = typer.Option(".", "--decimal", help="Decimal separator."),
    encoding: str = typer.Option("utf-8", help=f"Encoding of CSV and JSON: {', '.join(ENCODINGS)}."),
    skip: int = typer.Option(0, min=0, help="Lines before the header of CSV."),
    header: bool = typer.Option(
        True, "--header/--no-header", help="Without a header the columns are column1, column2, …."
    ),
    time_zone: str = typer.Option(
        "", metavar="ZONE", help="Zone of times without an offset, such as Europe/Paris; default: UTC."
    ),
    hive_partitioning: bool = typer.Option(
        True, "--hive-partitioning/--no-hive-partitioning", help="Folders such as year=2024 in paths are columns."
    ),
    select: str | None = typer.Option(
        None, metavar="SQL", help='Query over the rows: "SELECT a, upper(b) AS b FROM input".'
    ),
    bad_rows: Path | None = typer.Option(
        None, metavar="FILE", help="Write rows that do not fit to this JSON lines file."
    ),
    max_bad_rows: int | None = typer.Option(
        None, min=0, help="Accept so many bad rows; default: 0, or 10000 with --bad-rows."
    ),
    id: str | None = typer.Option(None, "--id", help="Id of the load: a second load with it changes nothing."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the columns, and write nothing."),
    options: Options = None,
    as_json: Json = False,
) -> Output:
    """Load CSV, JSON or Parquet files into a table, in one version.

    A row that does not fit is an error, and nothing is loaded. Files are read as a stream in bounded memory; only
    --mode upsert keeps all rows in memory.
    """
    if Path(table).is_file():
        raise InvalidArgument(f"{table} is a file: the table comes last, after the files")
    if on and mode != "upsert":
        raise InvalidArgument("--on needs --mode upsert")
    if evolve_schema and mode != "append":
        raise InvalidArgument("--evolve-schema needs --mode append")
    if encoding not in ENCODINGS:
        raise InvalidArgument(f"--encoding is {', '.join(ENCODINGS)}, not {encoding!r}")
    if max_bad_rows is None:
        max_bad_rows = 0 if bad_rows is None else _BAD_ROWS_MAX
    lake = open_lakehouse(root, options)
    if id is not None and (outcome := lake.transactions.outcome(id)).status == "committed":
        text = Text(f"already committed as version {outcome.version}")
        return {"table": table, "version": outcome.version, "was_committed": True}, text
    declared = {name: parse_type(type) for name, type in key_values(types).items()}
    known = format or format_of(files)
    if declared and known == "parquet":
        raise InvalidArgument("--type is for CSV and JSON: Parquet files have types, which --select can change")
    if time_zone and known == "parquet":
        raise InvalidArgument("--time-zone is for CSV and JSON: for Parquet, use --select with AT TIME ZONE")
    if decimal != "." and known != "csv":
        raise InvalidArgument("--decimal is for CSV: numbers of JSON and Parquet have one form")
    if len(delimiter) > 1:
        raise InvalidArgument(f"--delimiter is one character, not {delimiter!r}; in bash, a tab is $'\\t'")
    known_columns = lake.table(table).schema.columns if select is None and lake.exists(table) else []
    required = [one.name for one in known_columns if not one.nullable] or primary_key or []
    text_options = TextOptions(
        types={one.name: one.type for one in known_columns if is_convertible(one.type)} | declared,
        nested=[one.name for one in known_columns if one.type.children],
        required=required if select is None else [],
        nulls=nulls or (),
        delimiter=delimiter,
        decimal=decimal,
        encoding=encoding,
        skip=skip,
        has_header=header,
        time_zone=time_zone,
        bad_rows_max=max_bad_rows,
    )
    with (
        counting("reading", "rows") as on_progress,
        input_files(
            files, known, text_options, storage_options(options), hive_partitioning=hive_partitioning
        ) as inputs,
    ):
        if bad_rows is not None:
            _check_bad_rows(bad_rows, inputs.names)
        if unknown := [name for name in declared if name not in inputs.schema.names]:
            raise InvalidArgument(
                f"--type: no file has the column {unknown[0]!r}, only {', '.join(inputs.schema.names)}"
            )
        rows = inputs.reader(lambda done: on_progress("read", done), select)
        if time_zone and lake.exists(table):
            _check_time_zone(lake.table(table), rows.schema.names)
        with _named(inputs.names.values(), has_select=select is not None):
            columns = [{"name": column.name, "type": str(column.type)} for column in as_schema(rows.schema).columns]
        document: dict[str, Any] = {
            "table": table,
            "format": known,
            "files": len(inputs.names),
            "size_bytes": inputs.size_bytes,
            "columns": columns,
            "notes": inputs.notes,
        }
        for note in inputs.notes if not as_json else ():
            emit_warning(note)
        if dry_run:
            picture = grid("column", "type")
            for column in columns:
                picture.add_row(Text(column["name"]), Text(column["type"]))
            size = filesize.decimal(inputs.size_bytes)
            text = Text(f"{counted(len(inputs.names), f'{known} file')}, {size}, with the columns")
            return document | {"version": None}, Group(text, picture)
        rejected = inputs.bad_rows
        with (
            _named(inputs.names.values(), has_select=select is not None),
            lake.transaction(**log, id=id, restart=id is not None) as transaction,
        ):
            target = _target(transaction, table, rows.schema, create, partition_by, primary_key, evolve_schema)
            if mode == "overwrite":
                target.overwrite(rows)
            elif mode == "upsert":
                target.upsert(rows, on)
            else:
                target.append(rows, evolve_schema=evolve_schema)
            # Write the bad rows before the commit: if the process died between the two, they would be lost.
            if bad_rows is not None:
                with bad_rows.open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rejected)
    summary = transaction.summary
    version = transaction.version if transaction.version != transaction.base_version else None
    text = Text("nothing changed" if version is None else f"version {version}: {summary}")
    if rejected:
        text.append(
            f"\n{counted(len(rejected), 'row')} rejected{'' if bad_rows is None else f', see {bad_rows}'}", "yellow"
        )
    return document | {"version": version, "summary": summary, "bad_rows": len(rejected)}, text


def _target(
    transaction: Transaction,
    name: str,
    schema: pa.Schema,
    create: bool,
    partition_by: list[str] | None,
    primary_key: list[str] | None,
    evolve_schema: bool,
) -> Table:
    """The table to load into. If it does not exist, it is created, or `ObjectNotFound` is raised without `create`."""
    if not transaction.exists(name):
        if not create:
            raise ObjectNotFound(f"table {name} does not exist: use --create to create it")
        transaction.create_namespace(split(name)[0], exist_ok=True)
        return transaction.create_table(name, schema, partition_spec=partition_by, primary_key=primary_key or ())
    if partition_by or primary_key:
        raise InvalidArgument(f"table {name} exists: --partition-by and --primary-key create a table")
    table = transaction.table(name)
    known = table.schema.names
    spellings = {name.lower() for name in known}
    new = [name for name in schema.names if name not in known]
    if new := [name for name in new if not evolve_schema or name.lower() in spellings]:
        raise InvalidArgument(
            f"table {name} has no column {new[0]!r}; {hint(new[0], known)}; --evolve-schema adds columns, and --select "
            "renames or leaves out some"
        )
    return table


def _check_time_zone(table: Table, columns: Container[str]) -> None:
    """Raise `InvalidArgument` for nested columns with instants, because their texts are converted without the zone."""
    for column in table.schema.columns:
        if column.name in columns and _has_instants(column.type):
            raise InvalidArgument(
                f"--time-zone does not apply to times in the nested column {column.name}: give them an offset, and "
                "convert other columns with --select and AT TIME ZONE"
            )


def _has_instants(type: Type) -> bool:
    return any(child.type.kind == "timestamptz" or _has_instants(child.type) for child in type.children)


@contextmanager
def _named(files: Iterable[str], *, has_select: bool) -> Iterator[None]:
    """Add the names of the files, and the option that helps, to errors about columns that the table cannot store."""
    names = list(dict.fromkeys(files))
    try:
        yield
    except InvalidArgument as error:
        if has_select or not error.message.startswith("column ") or "--" in error.message:
            raise
        more = "" if len(names) == 1 else f" or one of {len(names) - 1} other files"
        raise InvalidArgument(
            f'{names[0]}{more}: {error.message}; or use --select "SELECT * REPLACE (a::BIGINT AS a) FROM input"'
        ) from error


def _check_bad_rows(file: Path, inputs: Iterable[Path]) -> None:
    """Raise `InvalidArgument` if the file of bad rows has no folder, or would overwrite an input file."""
    if not file.parent.is_dir():
        raise InvalidArgument(f"--bad-rows: the folder {file.parent} does not exist")
    if file.exists() and any(file.samefile(one) for one in inputs):
        raise InvalidArgument(f"--bad-rows: {file} is one of the files to load")
