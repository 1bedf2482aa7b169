"""`maintain`: run the maintenance policy of the lakehouse, for cron."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake.cli.command import Author, Json, Message, Options, Root, command, open_lakehouse
from trinitylake.cli.compact import tables_told, tree_told
from trinitylake.cli.expire import told
from trinitylake.cli.output import emit
from trinitylake.cli.progress import counting
from trinitylake.cli.vacuum import picture
from trinitylake.lakehouse.maintenance_policy import MaintenanceReport


@command
def maintain(
    root: Root,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be done, and change nothing.")] = False,
    message: Message = "",
    author: Author = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Run the maintenance policy: compact, expire, vacuum."""
    with counting("looking") as on_progress:
        done = open_lakehouse(root, options).maintenance.run(
            dry_run=dry_run, progress=on_progress, message=message, author=author
        )
    parts = [
        _compacted(done, dry_run),
        Text(f"{sum(done.snapshots_expired.values())} snapshots of {len(done.snapshots_expired)} tables expired"),
        *(Text(f"skipped {name}: {why.message}", "yellow") for name, why in done.skipped.items()),
        Text("tree not compacted (maintenance.compact-tree)", "dim") if done.tree is None else tree_told(done.tree),
        Text("no expiry (maintenance.expire)", "dim") if done.expired is None else Text(told(done.expired, dry_run)),
        Text("no vacuum (maintenance.vacuum)", "dim") if done.vacuumed is None else picture(done.vacuumed),
    ]
    document = {
        "policy": asdict(done.policy),
        "compacted": {name: one._asdict() for name, one in done.compacted.items()},
        "snapshots_expired": done.snapshots_expired,
        "skipped": {name: why.message for name, why in done.skipped.items()},
        "tree": None if done.tree is None else asdict(done.tree),
        "expired": None if done.expired is None else list(done.expired),
        "vacuumed": None if done.vacuumed is None else asdict(done.vacuumed),
    }
    emit(document, Group(*parts), as_json)


def _compacted(done: MaintenanceReport, dry_run: bool) -> RenderableType:
    if not done.compacted:
        is_off = not done.policy.compact
        return Text("no compaction (maintenance.compact)" if is_off else "no table has enough small files", "dim")
    return tables_told(done.compacted, "would go" if dry_run else "files before", "would come" if dry_run else "after")
