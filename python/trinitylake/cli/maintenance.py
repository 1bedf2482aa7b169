"""`compact`, `expire`, `vacuum` and `maintain`: maintenance of a lakehouse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trinitylake.cli.command import DryRun, Lake, LogInfo, Output, command, object_names
from trinitylake.cli.output import age_text, counted, counting, grid, progress, time_text
from trinitylake.lakehouse.history import Expired
from trinitylake.lakehouse.maintenance_policy import MaintenanceReport, TreeCompaction
from trinitylake.lakehouse.vacuum_report import Files, Vacuumed

if TYPE_CHECKING:
    from trinitylake.tables.compaction import CompactResult

#: Maximum number of tables and of unknown files that are printed.
_SHOWN_MAX = 20


@command
def compact(
    lake: Lake,
    log: LogInfo,
    tables: list[str] | None = typer.Argument(
        None,
        help="Tables whose small data files are compacted; without any, the tree of the catalog.",
        autocompletion=object_names("table"),
    ),
    sort_by: str | None = typer.Option(
        None, "--sort-by", help="Tables only: rewrite all data files, sorted by this column."
    ),
    force: bool = typer.Option(False, "--force", help="Tree only: also if it saves little."),
    dry_run: DryRun = False,
) -> Output:
    """Rebuild the tree, or compact small data files of tables.

    Older versions do not change.
    """
    if not tables:
        if sort_by is not None:
            raise typer.BadParameter("--sort-by needs the name of a table")
        log["message"] = log["message"] or "compact"
        done = lake.maintenance.compact(force=force, dry_run=dry_run, **log)
        return asdict(done), _tree_text(done)
    if force:
        raise typer.BadParameter("--force applies to the tree, not to tables")
    results = {}
    for name in tables:
        with progress(name) as on_progress:
            results[name] = lake.table(name).maintenance.compact(
                sort_by=sort_by, dry_run=dry_run, progress=on_progress, **log
            )
    return {name: result._asdict() for name, result in results.items()}, _tables_grid(results)


@command
def expire(
    lake: Lake,
    log: LogInfo,
    before: str | None = typer.Option(
        None, "--before", metavar="VERSION", help="Versions older than this one, given as for --at."
    ),
    older_than: str | None = typer.Option(
        None, "--older-than", help='Versions older than this: "7 days", "36 h".', metavar="DURATION"
    ),
    keep: int | None = typer.Option(None, "--keep", min=1, help="Keep at least so many versions."),
    dry_run: DryRun = False,
) -> Output:
    """Delete old versions, by retention or by these options.

    Versions with a tag and bases of open saved transactions are kept. Use `vacuum` to delete the files that only
    expired versions reference.
    """
    expired = lake.maintenance.expire(before=before, older_than=older_than, keep=keep, dry_run=dry_run, **log)
    document = {
        "versions": list(expired),
        "size_bytes": expired.size_bytes,
        "oldest": expired.oldest,
        "kept_size_bytes": expired.kept_size_bytes,
        "dry_run": dry_run,
    }
    return document, Text(_expired_text(expired, dry_run))


@command
def vacuum(
    lake: Lake,
    log: LogInfo,
    grace: str | None = typer.Option(
        None, "--grace", metavar="DURATION", help='Keep younger files, by the clock of the store; default "1 day".'
    ),
    dry_run: DryRun = False,
) -> Output:
    """Delete files that no version or transaction references.

    Use `expire` first to delete old versions.
    """
    with counting("listing") as on_progress:
        done = lake.maintenance.vacuum(grace=grace, dry_run=dry_run, progress=on_progress, **log)
    return asdict(done), _vacuumed_group(done)


@command
def maintain(lake: Lake, log: LogInfo, dry_run: DryRun = False) -> Output:
    """Run the maintenance policy: compact, expire, vacuum."""
    maintenance = lake.maintenance
    last = maintenance.last_steps()
    with counting("listing") as on_progress:
        done = maintenance.run(dry_run=dry_run, progress=on_progress, **log)
    parts = [
        *(
            Text(f"last {one.step}: {age_text(one.created_at)}, version {one.version} by {one.author}", "dim")
            for one in last
        ),
        _compacted_part(done, dry_run),
        Text(f"{sum(done.snapshots_expired.values())} snapshots of {len(done.snapshots_expired)} tables expired"),
        *(Text(f"skipped {name}: {why.message}", "yellow") for name, why in done.skipped.items()),
        _off("compact-tree") if done.tree is None else _tree_text(done.tree),
        _off("expire") if done.expired is None else Text(_expired_text(done.expired, dry_run)),
        _off("vacuum") if done.vacuumed is None else _vacuumed_group(done.vacuumed),
    ]
    document = {
        "last": {one.step: one._asdict() for one in last},
        "policy": asdict(done.policy),
        "compacted": {name: one._asdict() for name, one in done.compacted.items()},
        "snapshots_expired": done.snapshots_expired,
        "skipped": {name: why.message for name, why in done.skipped.items()},
        "tree": None if done.tree is None else asdict(done.tree),
        "expired": None if done.expired is None else list(done.expired),
        "vacuumed": None if done.vacuumed is None else asdict(done.vacuumed),
    }
    return document, Group(*parts)


def _off(step: str) -> Text:
    return Text(f"{step} is off (property maintenance.{step})", "dim")


def _compacted_part(done: MaintenanceReport, dry_run: bool) -> RenderableType:
    if done.compacted:
        return _tables_grid(done.compacted, dry_run)
    return Text("no table has enough small files", "dim") if done.policy.compact else _off("compact")


def _tree_text(done: TreeCompaction) -> Text:
    before = counted(done.nodes_before, "node")
    if done.version is None:
        return Text(f"tree not rebuilt: {before}, a new tree would have {done.nodes_after}", "dim")
    return Text(f"tree rebuilt in version {done.version}: {before} before, {done.nodes_after} after")


def _tables_grid(results: Mapping[str, CompactResult], dry_run: bool = False) -> Table:
    """The number of files and the bytes of each table. A dry run has no column for the size of new files, which is
    unknown.
    """
    before, after = ("would replace", "would write") if dry_run else ("files before", "after")
    headers = ["size before", *(["size after"] if any(one.bytes_added for one in results.values()) else [])]
    table = grid("table", before, after, *headers, numbers=[before, after, *headers])
    for name, result in results.items():
        sizes = [filesize.decimal(result.bytes_removed), filesize.decimal(result.bytes_added)]
        table.add_row(Text(name), str(result.files_removed), str(result.files_added), *sizes[: len(headers)])
    return table


def _expired_text(expired: Expired, dry_run: bool) -> str:
    if not expired:
        return f"nothing to expire: the oldest version is {expired.oldest}"
    span = (
        f"version {expired[0]}" if len(expired) == 1 else f"{len(expired)} versions from {expired[0]} to {expired[-1]}"
    )
    before = filesize.decimal(expired.size_bytes + expired.kept_size_bytes)
    after = filesize.decimal(expired.kept_size_bytes)
    verb = "would expire" if dry_run else "expired"
    return f"{span} {verb}; the oldest version is {expired.oldest}; root files before: {before}, after: {after}"


def _vacuumed_group(done: Vacuumed) -> RenderableType:
    verb = "would be deleted" if done.dry_run else "deleted"
    parts: list[RenderableType] = [Text(f"{_files(done.total_deleted)} {verb}, {_files(done.total_kept)} kept")]
    kinds = grid("kind", verb, "size", "kept", "size", numbers=[verb, "size", "kept"])
    for kind in dict.fromkeys([*done.deleted, *done.kept]):
        deleted, kept = done.deleted.get(kind, Files(0, 0)), done.kept.get(kind, Files(0, 0))
        sizes = filesize.decimal(deleted.size_bytes), filesize.decimal(kept.size_bytes)
        kinds.add_row(kind, str(deleted.files), sizes[0], str(kept.files), sizes[1])
    parts.append(kinds)
    if done.deleted_by_table:
        tables = grid("table folder", verb, "size", numbers=[verb, "size"])
        largest = sorted(done.deleted_by_table.items(), key=lambda item: -item[1].size_bytes)
        for folder, count in largest[:_SHOWN_MAX]:
            tables.add_row(Text(folder), str(count.files), filesize.decimal(count.size_bytes))
        parts.append(tables)
    if done.young.files:
        parts.append(Text(f"kept {_files(done.young)} younger than {time_text(done.before)}", "dim"))
    if done.foreign.files:
        parts.append(Text(f"kept {_files(done.foreign)} of external or federated tables", "dim"))
    if done.unknown.files:
        shown = "\n  ".join(done.unknown_paths[:_SHOWN_MAX])
        parts.append(Text(f"kept {_files(done.unknown)} of unknown kind:\n  {shown}", "yellow"))
    return Group(*parts)


def _files(count: Files) -> str:
    return f"{counted(count.files, 'file')} ({filesize.decimal(count.size_bytes)})"
