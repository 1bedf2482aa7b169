"""`page`: the page for browsers as files, beside a lakehouse whose files a browser can fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

from trinitylake.cli.command import Json, command
from trinitylake.cli.output import emit
from trinitylake.page import write_files


@command
def page(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files of the page go.")],
    lakehouse: Annotated[
        str, typer.Option(metavar="URL", help="The root of the lakehouse, as a browser gets there from the page.")
    ],
    sql: Annotated[
        Path | None,
        typer.Option(
            metavar="PACKAGE",
            help="With queries in SQL: the npm package @duckdb/duckdb-wasm, as a folder or as `npm pack` writes it.",
            exists=True,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the page for browsers that needs no server.

    Its files read a lakehouse over HTTP.
    """
    files = write_files(folder, lakehouse, sql)
    size_bytes = sum(path.stat().st_size for path in files)
    document = {"files": len(files), "size_bytes": size_bytes, "index": str(folder / "index.html")}
    emit(document, Text(f"{len(files)} files, {filesize.decimal(size_bytes)}: {folder / 'index.html'}"), as_json)
