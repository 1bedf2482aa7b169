"""`fsck`: whether a lakehouse keeps the rules of its format, and mending it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake import _core
from trinitylake.cli.command import Json, Options, Root, command, open_lakehouse, storage_options
from trinitylake.cli.exit_codes import CORRUPT
from trinitylake.cli.output import counted, emit, grid
from trinitylake.cli.progress import progress
from trinitylake.errors import CorruptFile, InvalidArgument
from trinitylake.lakehouse.fsck import FsckReport, Versions
from trinitylake.lakehouse.fsck import fsck as check

#: Findings that people see at most; programs see all.
_SHOWN = 100


@command
def fsck(
    root: Root,
    version: Annotated[
        str | None,
        typer.Option("--version", help='A version, a range such as "3-7", or "all"; the newest without it.'),
    ] = None,
    files: Annotated[bool, typer.Option("--files", help="Look for the files of managed tables, too.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the newest version first. Stop all who write before.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what --repair would do, and write nothing.")] = False,
    author: Annotated[str, typer.Option("--author", help="Who repairs, for the log.")] = "",
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Check every rule of the format. Ends with 5 if anything is wrong."""
    try:
        storage = open_lakehouse(root, options)._storage
    except CorruptFile:  # what cannot be opened can be checked all the same
        storage = _core.Storage(root, storage_options(options))
    with progress("checking versions") as on_progress:
        report = check(
            storage,
            version=_versions(version),
            files=files,
            repair=repair,
            dry_run=dry_run,
            author=author,
            progress=lambda done, total, _: on_progress(done, total),
        )
    emit(asdict(report) | {"is_sound": report.is_sound}, _picture(report, files, dry_run), as_json)
    if not report.is_sound:
        raise typer.Exit(CORRUPT)


def _versions(text: str | None) -> Versions:
    if text is None or text == "all":
        return text  # type: ignore[return-value]
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InvalidArgument(f"--version takes a version, a range such as 3-7, or all, not {text!r}")
    return (int(first), int(last)) if dash else int(first)


def _picture(report: FsckReport, with_files: bool, dry_run: bool) -> RenderableType:
    parts: list[RenderableType] = []
    if (mended := report.repair) is not None:
        if mended.version is not None:
            parts.append(Text(f"version {mended.version} was made", "green"))
        would = "would be saved: " if dry_run else "saved: "
        parts += [Text(would + line, "green") for line in mended.saved]
        parts += [Text(f"lost: {line}", "red") for line in mended.lost]
        if not mended.saved and not mended.lost:
            parts.append(Text("nothing to mend"))
    files = f", {counted(report.files, 'file')} of tables looked for" if with_files else ""
    versions, nodes = counted(report.versions, "version"), counted(report.nodes, "node")
    read = f"{versions}, {nodes} and {counted(report.definitions, 'definition')} read{files}"
    parts.append(Text(f"{read}: {'sound' if report.is_sound else 'not sound'}", "bold"))
    if report.findings:
        table = grid("what", "file", "versions", "affected", "why")
        for one in report.findings[:_SHOWN]:
            style = "dim" if one.kind == "unreferenced" else "red"
            table.add_row(
                Text(one.kind, style),
                Text(one.path),
                Text(_numbers(one.versions)),
                Text(", ".join(one.affected)),
                Text(one.message),
            )
        parts.append(table)
    if len(report.findings) > _SHOWN:
        parts.append(Text(f"and {len(report.findings) - _SHOWN} more; --json has all", "dim"))
    return Group(*parts)


def _numbers(versions: tuple[int, ...]) -> str:
    """Versions in words: those that follow each other as a range."""
    ranges: list[tuple[int, int]] = []
    for version in versions:
        if ranges and ranges[-1][1] + 1 == version:
            ranges[-1] = ranges[-1][0], version
        else:
            ranges.append((version, version))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
