"""`txn ls|show|commit|rollback`: transactions that were saved and wait to be resumed; `changes`: what each changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, app, command, open_lakehouse
from trinitylake.cli.history import told
from trinitylake.cli.output import age_text, emit, grid, pairs, time_left_text, time_text
from trinitylake.cli.plain_values import PlainGroup
from trinitylake.errors import ObjectNotFound

txn = typer.Typer(cls=PlainGroup, no_args_is_help=True, help="Saved transactions: list them, look at one, end one.")
app.add_typer(txn, name="txn")

Id = Annotated[str, typer.Argument(help="The id of the transaction.")]


def ls(root: Root, options: Options = None, as_json: Json = False) -> None:
    """Print the saved transactions that can be resumed."""
    saved = open_lakehouse(root, options).transactions.list()
    picture = grid("id", "isolation", "began", "expires", "base", "message", numbers=["base"])
    for one in saved:
        times = age_text(one.began_at), time_left_text(one.expires_at)
        picture.add_row(Text(one.id), one.isolation, *times, str(one.base_version), Text(one.message))
    emit([asdict(one) for one in saved], picture if saved else Text("no saved transaction", "dim"), as_json)


def show(root: Root, id: Id, options: Options = None, as_json: Json = False) -> None:
    """Print what became of a transaction, and what is saved of it."""
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
        list[str] | None,
        typer.Option(help="A module whose functions may run as checks of the transaction. May be repeated."),
    ] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Commit a saved transaction.

    One that has been committed says so again.
    """
    version = open_lakehouse(root, options).resume(id, allow_checks=allow_checks or ()).commit()
    emit({"id": id, "version": version}, Text(f"transaction {id} is version {version}"), as_json)


def rollback(root: Root, id: Id, options: Options = None, as_json: Json = False) -> None:
    """Roll a saved transaction back, and delete what it wrote.

    Ends with 3 if it was committed.
    """
    open_lakehouse(root, options).resume(id).rollback()
    emit({"id": id, "rolled_back": True}, Text(f"transaction {id} was rolled back"), as_json)


for function in (ls, show, commit, rollback):
    command(function, txn)


@command
def changes(
    root: Root,
    since: Annotated[int, typer.Argument(help="The last version that was seen.")],
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Print what each transaction changed since a version.

    The oldest first.
    """
    feed = list(open_lakehouse(root, options).changes(since))
    picture = grid("version", "what happened", "changes", numbers=["version"])
    for one in feed:
        picture.add_row(str(one.version), told(one.transaction), Text(str(one.diff)))
    emit([asdict(one) for one in feed], picture if feed else Text("no change", "dim"), as_json)
