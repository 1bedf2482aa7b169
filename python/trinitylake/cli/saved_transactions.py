"""`txn ls|show|commit|rollback`: saved transactions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, group, open_lakehouse
from trinitylake.cli.output import age_text, emit, grid, pairs, time_left_text, time_text
from trinitylake.errors import ObjectNotFound

Id = Annotated[str, typer.Argument(help="The id of the transaction.")]


def ls(root: Root, options: Options = None, as_json: Json = False) -> None:
    """List saved transactions that can be resumed."""
    saved = open_lakehouse(root, options).transactions.list()
    picture = grid("id", "isolation", "began", "expires", "base", "message", numbers=["base"])
    for one in saved:
        times = age_text(one.began_at), time_left_text(one.expires_at)
        picture.add_row(Text(one.id), one.isolation, *times, str(one.base_version), Text(one.message))
    emit([asdict(one) for one in saved], picture if saved else Text("no saved transaction", "dim"), as_json)


def show(root: Root, id: Id, options: Options = None, as_json: Json = False) -> None:
    """Print the outcome of a transaction and its saved state."""
    lake = open_lakehouse(root, options)
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
    emit(document, pairs(rows), as_json)


def commit(
    root: Root,
    id: Id,
    allow_checks: Annotated[
        list[str] | None, typer.Option(help="Module whose functions may run as checks of the transaction, repeatable.")
    ] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Commit a saved transaction.

    Committing it again prints the same version.
    """
    version = open_lakehouse(root, options).resume(id, allow_checks=allow_checks or ()).commit()
    emit({"id": id, "version": version}, Text(f"transaction {id} is version {version}"), as_json)


def rollback(root: Root, id: Id, options: Options = None, as_json: Json = False) -> None:
    """Roll back a saved transaction and delete its files.

    The exit code is 3 if it was committed.
    """
    open_lakehouse(root, options).resume(id).rollback()
    emit({"id": id, "rolled_back": True}, Text(f"transaction {id} was rolled back"), as_json)


group("txn", ls, show, commit, rollback)
