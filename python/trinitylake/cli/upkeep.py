"""`upkeep`: what the lakehouse's own policy says, for cron."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.expire import told
from trinitylake.cli.output import emit
from trinitylake.cli.progress import counting
from trinitylake.cli.vacuum import picture


@command
def upkeep(
    root: Root,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Let go what the lakehouse's policy does not keep: old versions, then files that nothing reaches."""
    with counting("looking") as on_progress:
        done = open_lakehouse(root, options).upkeep(dry_run=dry_run, progress=on_progress)
    parts = [
        Text("expiry is off (upkeep.expire)", "dim") if done.expired is None else Text(told(done.expired, dry_run)),
        Text("vacuum is off (upkeep.vacuum)", "dim") if done.vacuumed is None else picture(done.vacuumed),
    ]
    document = {
        "policy": asdict(done.policy),
        "expired": None if done.expired is None else list(done.expired),
        "vacuumed": None if done.vacuumed is None else asdict(done.vacuumed),
    }
    emit(document, Group(*parts), as_json)
