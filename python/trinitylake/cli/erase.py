"""`erase`: erase rows from a table, its history and the storage."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake.cli.app import FAILED
from trinitylake.cli.command import Author, DryRun, Json, Options, Root, command, open_lakehouse
from trinitylake.cli.completion import object_names
from trinitylake.cli.output import counted, counting, emit
from trinitylake.lakehouse.erasure import Erasure

#: Maximum number of printed files of each kind; --json prints all.
_SHOWN = 20


@command
def erase(
    root: Root,
    table: Annotated[str, typer.Argument(help="A managed table.", autocompletion=object_names("table"))],
    filter: Annotated[str, typer.Argument(help="Rows to erase, as in \"email = 'ann@example.com'\".")],
    reason: Annotated[
        str, typer.Option("--reason", help="Text for the log and the certificate, without personal data.")
    ] = "",
    drop_tags: Annotated[
        bool,
        typer.Option("--drop-tags", help="Drop tags of versions with matching rows, and such branches of the table."),
    ] = False,
    roll_back_transactions: Annotated[
        bool, typer.Option("--roll-back-transactions", help="Roll back saved transactions that may hold matching rows.")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="DURATION",
            help="Keep unreferenced files younger than this, for running transactions; default: none.",
        ),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option("--certificate", metavar="FILE", help="File to create; default: erasure-TABLE-TIME.json."),
    ] = None,
    dry_run: DryRun = False,
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Erase rows from a table, its history and the storage, and verify that no file holds them.

    If a kept version holds matching rows, all versions so far expire. The command deletes the files, searches all files
    below the root, and writes a certificate. The exit code is 1 if something remains.
    """
    with counting("searching") as on_progress:
        done = open_lakehouse(root, options).erase(
            table,
            filter,
            reason=reason,
            drop_tags=drop_tags,
            roll_back_transactions=roll_back_transactions,
            grace=grace,
            dry_run=dry_run,
            author=author,
            progress=on_progress,
        )
    document = asdict(done) | {"is_verified": done.is_verified}
    del document["key"]
    path = ""
    if not dry_run:
        path = certificate or f"erasure-{done.table}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
        done.write(path)
        document["certificate_file"] = path
    emit(document, _planned(done) if dry_run else _erased(done, path), as_json)
    if not dry_run and not done.is_verified:
        raise typer.Exit(FAILED)


def _planned(done: Erasure) -> RenderableType:
    if not (done.files or done.versions):
        return Text(f"no kept version of {done.table} holds matching rows")
    span = "all versions so far would expire" if done.versions else "no version would expire"
    parts = [Text(f"{counted(len(done.files), 'file')} with matching rows; {span}", "bold")]
    parts += [Text(f"  {path}: {counted(rows, 'row')}") for path, rows in list(done.files.items())[:_SHOWN]]
    parts += [Text(f"tag {name} would be dropped (needs --drop-tags)", "yellow") for name in done.tags]
    parts += [Text(f"reference {name} would be dropped (needs --drop-tags)", "yellow") for name in done.refs]
    parts += [
        Text(f"saved transaction {id} would be rolled back (needs --roll-back-transactions)", "yellow")
        for id in done.transactions
    ]
    return Group(*parts)


def _erased(done: Erasure, path: str) -> RenderableType:
    version = "no version held matching rows" if done.version is None else f"the oldest version is now {done.version}"
    expired, deleted = counted(len(done.expired), "version"), counted(len(done.deleted), "file")
    searched, result = counted(done.searched, "file"), "verified" if done.is_verified else "NOT verified"
    parts = [Text(f"{version}; {expired} expired, {deleted} deleted, {searched} searched: {result}", "bold")]
    parts += [Text(f"remains: {name}: {why}", "red") for name, why in list(done.remaining.items())[:_SHOWN]]
    parts += [Text(f"holds a value of the filter: {name}", "red") for name in done.mentions[:_SHOWN]]
    parts += [Text(f"cannot be searched: {name}: {why}", "red") for name, why in list(done.unreadable.items())[:_SHOWN]]
    parts += [Text(f"another table or column has such values: {name}", "yellow") for name in done.others[:_SHOWN]]
    parts += [Text(f"not covered: {what}", "dim") for what in done.not_covered]
    parts.append(Text(f"certificate: {path}; its secret key: {path}.key (keep it in another place)"))
    return Group(*parts)
