"""`erase`: erase rows from a table, its history and the storage."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake.cli.app import FAILED
from trinitylake.cli.command import Author, DryRun, Lake, Output, command, object_names
from trinitylake.cli.output import counted, counting, first_lines, ranges_text
from trinitylake.lakehouse.erasure import Erasure


@command
def erase(
    lake: Lake,
    table: str = typer.Argument(..., help="A managed table.", autocompletion=object_names("table")),
    filter: str = typer.Argument(..., help="Rows to erase, as in \"email = 'ann@example.com'\"."),
    rewrite_history: bool = typer.Option(
        True,
        "--rewrite-history/--expire",
        help="Keep earlier versions and tags without these rows, or expire all earlier versions.",
    ),
    reason: str = typer.Option("", "--reason", help="Text for the log and the certificate, without personal data."),
    drop_tags: bool = typer.Option(
        False, "--drop-tags", help="With --expire, drop tags of versions with matching rows."
    ),
    roll_back_transactions: bool = typer.Option(
        False, "--roll-back-transactions", help="Roll back saved transactions that may hold matching rows."
    ),
    grace: str | None = typer.Option(
        None,
        "--grace",
        metavar="DURATION",
        help="Keep unreferenced files younger than this, for running transactions; default: none.",
    ),
    certificate: str | None = typer.Option(
        None, "--certificate", metavar="FILE", help="File to create; default: erasure-TABLE-TIME.json."
    ),
    dry_run: DryRun = False,
    author: Author = "",
) -> Output:
    """Erase rows from a table, its history and the storage, and verify that no file holds them.

    The command deletes the files that held the rows, searches all files below the root, and writes a certificate. The
    exit code is 1 if something remains.
    """
    with counting("searching") as on_progress:
        done = lake.erase(
            table,
            filter,
            history="rewrite" if rewrite_history else "expire",
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
    if dry_run:
        return document, _planned(done)
    return document, _erased(done, path), 0 if done.is_verified else FAILED


def _planned(done: Erasure) -> RenderableType:
    if not (done.files or done.versions):
        return Group(Text(f"no kept version of {done.table} holds matching rows"), *_mentions(done))
    is_expired = done.history == "expire"
    span = "all versions so far would expire" if is_expired else "all versions and tags would stay without these rows"
    parts = [Text(f"{counted(len(done.files), 'file')} with matching rows; {span if done.versions else ''}", "bold")]
    parts += [Text(f"searched column: {names}") for names in done.columns]
    parts += first_lines([Text(f"  {path}: {counted(rows, 'row')}") for path, rows in done.files.items()], "file")
    if done.versions:
        parts.append(Text(f"{counted(len(done.versions), 'version')}: {ranges_text(done.versions, ' to ')}"))
    how = "would be dropped (needs --drop-tags)" if is_expired else "would stay without these rows"
    parts += [Text(f"tag {name} {how}", "yellow") for name in done.tags]
    parts += [
        Text(f"saved transaction {id} would be rolled back (needs --roll-back-transactions)", "yellow")
        for id in done.transactions
    ]
    return Group(*parts, *_mentions(done))


def _mentions(done: Erasure) -> list[Text]:
    parts = first_lines([Text(f"holds a value of the filter: {name}", "red") for name in done.mentions], "place")
    if any("version" in name for name in done.mentions) and done.history == "rewrite":
        parts.append(
            Text("messages and definitions of versions stay; --expire removes them with the versions", "yellow")
        )
    return parts


def _erased(done: Erasure, path: str) -> RenderableType:
    if done.version is None:
        version = "no version held matching rows"
    elif done.history == "expire":
        version = f"the oldest version is now {done.version}; {counted(len(done.expired), 'version')} expired"
    else:
        rewritten = counted(len(done.rewritten), "metadata file")
        version = f"version {done.version} and {rewritten} of earlier versions do not hold the rows"
    deleted = counted(len(done.deleted), "file")
    searched, result = counted(done.searched, "file"), "verified" if done.is_verified else "NOT verified"
    parts = [Text(f"{version}; {deleted} deleted, {searched} searched: {result}", "bold")]
    parts += first_lines([Text(f"remains: {name}: {why}", "red") for name, why in done.remaining.items()], "file")
    parts += _mentions(done)
    parts += first_lines(
        [Text(f"cannot be searched: {name}: {why}", "red") for name, why in done.unreadable.items()], "file"
    )
    others = [Text(f"another table or column has such values: {name}", "yellow") for name in done.others]
    parts += first_lines(others, "file")
    parts += [Text(f"not covered: {what}", "dim") for what in done.not_covered]
    parts.append(Text(f"certificate: {path}; its secret key: {path}.key (keep it in another place)"))
    return Group(*parts)
