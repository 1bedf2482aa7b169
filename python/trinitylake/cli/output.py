"""What commands print: rich text for people, one JSON document for programs; errors go to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Container
from datetime import datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.errors import (
    CommitConflict,
    TrinityLakeError,
)

#: Rich cuts what does not fit; a pipe has no width, so give it room.
PIPE_WIDTH = 220


def console(*, stderr: bool = False) -> Console:
    """A console on what standard output is at this moment."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def emit(document: Any, picture: RenderableType, as_json: bool) -> None:
    """Print `document` as JSON, or `picture` for people."""
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False, default=_plain))
    else:
        console().print(picture)


def emit_error(error: TrinityLakeError, as_json: bool) -> None:
    """Print an error on standard error: its kind, its message, and the attributes that its class adds."""
    if as_json:
        document = {"kind": error.kind, "message": error.message, **vars(error)}
        print(json.dumps({"error": document}, ensure_ascii=False, default=_plain), file=sys.stderr)
        return
    out = console(stderr=True)
    out.print(Text.assemble((f"{error.kind}: ", "bold red"), error.message), soft_wrap=True)
    if isinstance(error, CommitConflict):
        for winner in error.winners:
            note = f" by {winner.author}" if winner.author else ""
            out.print(Text(f"  lost to version {winner.version}: {winner.message or winner.transaction_id}{note}"))


def emit_warning(message: str) -> None:
    """Print a warning on standard error."""
    console(stderr=True).print(Text.assemble(("warning: ", "bold yellow"), message), soft_wrap=True)


def grid(*headers: str, numbers: Container[str] = ()) -> Grid:
    """An empty table with these headers, without lines; the columns in `numbers` are aligned to the right."""
    table = Grid(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in numbers else "left")
    return table


def pairs(rows: dict[str, Any]) -> Grid:
    """Names and values, one pair a line."""
    table = Grid(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(str(value)))
    return table


def time_text(time: datetime) -> str:
    """A time for people, in their zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _plain(value: Any) -> Any:
    """What `json` cannot write by itself."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if hasattr(value, "_asdict"):
        return value._asdict()
    return str(value)
