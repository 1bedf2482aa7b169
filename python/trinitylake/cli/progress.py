"""A progress bar for work that takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from trinitylake.cli.output import console


@contextmanager
def progress(description: str) -> Iterator[Callable[[int, int], object]]:
    """A bar on standard error while people look at it, where it leaves the document on standard output alone.

    What it yields is to be called with how much is done, and how much there is.
    """
    out = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(description)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counting(description: str) -> Iterator[Callable[[str, int], object]]:
    """A count on standard error, for work of which nobody knows how much there is.

    What it yields is to be called with what is being done, and how much of it is done.
    """
    out = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda what, done: bar.update(task, description=f"{done} files {what}")
