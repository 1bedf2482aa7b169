"""`txn ls|show|commit|rollback`: saved transactions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Lake, Output, group
from trinitylake.cli.output import age_text, grid, pairs, time_left_text, time_text
from trinitylake.errors import ObjectNotFound

Id = Annotated[str, typer.Argument(help="The id of the transaction.")]


def ls(lake: Lake) -> Output:
    """List saved transactions that can be resumed."""
    saved = lake.transactions.list()
    picture = grid("id", "isolation", "began", "expires", "base", "message", numbers=["base"])
    for one in saved:
        times = age_text(one.began_at), time_left_text(one.expires_at)
        picture.add_row(Text(one.id), one.isolation, *times, str(one.base_version), Text(one.message))
    return [asdict(one) for one in saved], picture if saved else Text("no saved transaction", "dim")


def show(lake: Lake, id: Id) -> Output:
    """Print the outcome of a transaction and its saved state."""
    outcome = lake.transactions.outcome(id)
    saved = next((one for one in lake.transactions.list() if one.id == id), None)
    if saved is None and outcome.status in ("not committed", "unknown"):
        raise ObjectNotFound(f"transaction {id} is neither saved nor in the log")
    document = {"id": id, **outcome._asdict(), "saved": asdict(saved) if saved is not None else None}
    rows = {"id": id, "status": outcome.status if saved is None else "saved"}
    if outcome.version is not None:
        rows["version"] = str(outcome.version)
    if saved is not None:
        rows |= {
            "isolation": saved.isolation,
            "message": saved.message,
            "author": saved.author,
            "base version": str(saved.base_version),
            "began": time_text(saved.began_at),
            "expires": time_text(saved.expires_at),
            "times saved": str(saved.times_saved),
        }
    return document, pairs(rows)


def commit(
    lake: Lake,
    id: Id,
    allow_checks: list[str] | None = typer.Option(
        None, help="Module whose functions may run as checks of the transaction, repeatable."
    ),
) -> Output:
    """Commit a saved transaction.

    Committing it again prints the same version.
    """
    version = lake.resume(id, allow_checks=allow_checks or ()).commit()
    return {"id": id, "version": version}, Text(f"transaction {id} is version {version}")


def rollback(lake: Lake, id: Id) -> Output:
    """Roll back a saved transaction and delete its files.

    The exit code is 3 if it was committed.
    """
    lake.resume(id).rollback()
    return {"id": id, "rolled_back": True}, Text(f"transaction {id} was rolled back")


group("txn", ls, show, commit, rollback)
