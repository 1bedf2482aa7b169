"""Output of commands: tables for people, one JSON document for programs; errors on standard error.

Most output goes through functions of this module. They interpret no markup in names and messages, and let no control
character reach the terminal (`printable`).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich import filesize
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text

from trinitylake.base.durations import duration_text
from trinitylake.errors import TrinityLakeError
from trinitylake.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.style import Style

#: Width of the output to a pipe, so large that lines are not wrapped and programs find whole names and paths.
PIPE_WIDTH = 10_000
#: Maximum number of printed lines of one kind.
LINES_MAX = 20
_AGES = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"), (60 * 86400, 86400, "days"))


class HarmlessConsole(Console):
    """A console that interprets no markup and escapes control characters of terminals."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = _harmless(renderable)
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep="\n"), style, control)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text, keep="\n"), **options)


def _harmless(text: Text) -> Text:
    plain = printable(text.plain, keep="\n\t")
    if plain == text.plain:
        return text
    clean = text.blank_copy(plain)
    styles: set[str | Style] = {span.style for span in text.spans}
    if len(styles) == 1:
        clean.stylize(styles.pop())
    return clean


def console(*, stderr: bool = False) -> Console:
    """A console on the current standard output or standard error."""
    stream = sys.stderr if stderr else sys.stdout
    has_width = stream.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return HarmlessConsole(
        file=stream, width=None if has_width else PIPE_WIDTH, highlight=False, markup=False, emoji=False
    )


def emit(document: Any, picture: RenderableType, as_json: bool) -> None:
    """Print `document` as JSON or `picture` for people."""
    if as_json:
        print(_json(document, indent=2))
    else:
        console().print(picture)


def emit_error(error: TrinityLakeError, as_json: bool) -> None:
    """Print kind, message and attributes of an error on standard error."""
    emit_failure(error.kind, error.message, as_json, vars(error))


def emit_failure(kind: str, message: str, as_json: bool, more: Mapping[str, Any]) -> None:
    """Print an error on standard error; `more` contains further fields of the JSON form."""
    if as_json:
        print(_json({"error": {"kind": kind, "message": message, **more}}), file=sys.stderr)
        return
    # Further lines are indented, so that a line break in the message does not look like its end.
    text = Text.assemble((f"{kind}: ", "bold red"), "\n  ".join(message.splitlines()))
    console(stderr=True).print(text, soft_wrap=True)
    if hint := more.get("hint"):
        console(stderr=True).print(Text(str(hint), "dim"), soft_wrap=True)


def emit_unexpected(error: Exception, as_json: bool) -> None:
    """Print an error that is not a `TrinityLakeError`; without `--json`, print also its traceback."""
    if not as_json:
        lines = "".join(traceback.format_exception(error)).rstrip()
        console(stderr=True).print(Text(lines, "dim"), soft_wrap=True)
    emit_failure("unexpected", f"{type(error).__name__}: {error}", as_json, {})


def emit_warning(message: str) -> None:
    """Print a warning on standard error."""
    console(stderr=True).print(Text.assemble(("warning: ", "bold yellow"), message), soft_wrap=True)


class _HarmlessGrid(Grid):
    """A table that computes the width of its columns from the escaped text."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(_harmless(one) if isinstance(one, Text) else one for one in cells), **options)


def grid(*headers: str, numbers: Container[str] = ()) -> Grid:
    """An empty table without lines; the columns in `numbers` are aligned to the right.

    Numbers and short words are never wrapped; the other columns share the rest of the line.
    """
    table = _HarmlessGrid(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        whole = header in numbers or header in _WHOLE
        table.add_column(header, overflow="fold", justify="right" if header in numbers else "left", no_wrap=whole)
    return table


#: Columns whose cells are not wrapped.
_WHOLE = {"", "created", "kind", "size", "isolation", "began", "expires"}


def pairs(rows: dict[str, Any]) -> Grid:
    """Names and values, one pair per line. A number whose name ends in a unit is printed with a readable unit."""
    table = _HarmlessGrid(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(*map(Text, _readable(name, value)))
    return table


def _readable(name: str, value: Any) -> tuple[str, str]:
    if type(value) is int and name.endswith("_millis"):
        return name.removesuffix("_millis"), duration_text(value)
    if type(value) is int and name.endswith("size_bytes"):
        return name.removesuffix("_bytes"), filesize.decimal(value)
    if isinstance(value, dict):
        return name, "\n".join(f"{key} = {one}" for key, one in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return name, ", ".join(map(str, value)) or "none"
    return name, str(value)


@contextmanager
def progress(description: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager with a progress bar on standard error, if standard error is a terminal.

    Yields a function that takes the number of finished parts and the number of all parts.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    out = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(description)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


@contextmanager
def counting(description: str, noun: str = "files") -> Iterator[Callable[[str, int], object]]:
    """Context manager with a counter on standard error, if standard error is a terminal, for work of unknown size.

    Yields a function that takes a participle, such as "listed", and the number of parts.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn

    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda what, done: bar.update(task, description=f"{done:,} {noun} {what}")


def time_text(time: datetime) -> str:
    """A time in the local zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age_text(time: datetime) -> str:
    """An age such as `3 min ago`; for an age of more than two months, the date."""
    seconds = (datetime.now(UTC) - time).total_seconds()
    if seconds < 0:
        return time.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{text} ago" if (text := _span_text(seconds)) else time.astimezone().strftime("%Y-%m-%d")


def time_left_text(time: datetime) -> str:
    """A remaining time such as `in 3 h`; `over` for a time in the past."""
    seconds = (time - datetime.now(UTC)).total_seconds()
    if seconds < 0:
        return "over"
    return f"in {text}" if (text := _span_text(seconds)) else time.astimezone().strftime("%Y-%m-%d")


def _span_text(seconds: float) -> str:
    """A duration such as `3 min`; "" for more than two months."""
    return next((f"{int(seconds // unit)} {name}" for below, unit, name in _AGES if seconds < below), "")


def counted(number: int, noun: str) -> str:
    """A number with a noun in singular or plural, such as `1 node` and `1,200 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ranges_text(numbers: Iterable[int], to: str) -> str:
    """Ascending numbers with ranges, such as `3, 5-9` if `to` is "-"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join(to.join(map(str, run)) for run in runs)


def first_lines(lines: list[Text], noun: str) -> list[Text]:
    """The first lines, and a line with the number of the other lines."""
    more = len(lines) - LINES_MAX
    if more <= 0:
        return lines
    return [*lines[:LINES_MAX], Text(f"  and {counted(more, f'more {noun}')}; --json lists all", "dim")]


def _json(document: Any, indent: int | None = None) -> str:
    return printable_json(json.dumps(document, indent=indent, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if hasattr(value, "_asdict"):
        return value._asdict()
    return str(value)
