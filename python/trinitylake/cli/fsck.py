"""`fsck`: check and repair of a lakehouse."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trinitylake import _core
from trinitylake.cli.app import CORRUPT
from trinitylake.cli.command import DryRun, LogInfo, Options, Output, Root, command, open_lakehouse, storage_options
from trinitylake.cli.output import counted, grid, progress, ranges_text
from trinitylake.errors import CorruptFile, InvalidArgument
from trinitylake.lakehouse.fsck import HARMLESS, FsckReport, Versions, with_certificate
from trinitylake.lakehouse.fsck import fsck as check

#: Maximum number of findings that are printed; `--json` has all.
_SHOWN = 100


@command
def fsck(
    root: Root,
    log: LogInfo,
    version: str | None = typer.Option(
        None, "--version", help='A version, a range such as "3-7", or "all"; default: the latest.'
    ),
    files: bool = typer.Option(False, "--files", help="Also check that all files of managed tables exist."),
    data: bool = typer.Option(
        False, "--data", help="Also read all data files of managed tables, and verify their checksums."
    ),
    repair: bool = typer.Option(False, "--repair", help="Repair the latest version first. Stop all writers before."),
    certificate: str | None = typer.Option(
        None, "--certificate", metavar="FILE", help="Also check that the files which `erase` deleted are gone."
    ),
    filter: str | None = typer.Option(
        None, "--filter", help="With --certificate: also search all files for rows that match this filter."
    ),
    key: str | None = typer.Option(
        None,
        "--key",
        metavar="FILE",
        help="With --certificate: its key, to prove that it and the filter are unchanged.",
    ),
    dry_run: DryRun = False,
    options: Options = None,
) -> Output:
    """Check every rule of the format.

    The exit code is 5 if a rule is broken.
    """
    if certificate is None and (filter is not None or key is not None):
        raise typer.BadParameter("--filter and --key need --certificate")
    try:
        storage = open_lakehouse(root, options)._storage
    except CorruptFile:  # a lakehouse that cannot be opened can still be checked
        storage = _core.Storage(root, storage_options(options))
    with progress("checking versions") as on_progress:
        report = check(
            storage,
            version=_versions(version),
            files=files,
            data=data,
            repair=repair,
            dry_run=dry_run,
            **log,
            progress=lambda done, total, _: on_progress(done, total),
        )
        if certificate is not None:
            report = with_certificate(report, storage, certificate, filter, key)
    document = asdict(report) | {"is_sound": report.is_sound}
    return document, _picture(report, files or data, dry_run), 0 if report.is_sound else CORRUPT


def _versions(text: str | None) -> Versions:
    if text is None or text == "all":
        return text  # type: ignore[return-value]
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise InvalidArgument(f"--version takes a version, a range such as 3-7, or all, not {text!r}")
    return (int(first), int(last)) if dash else int(first)


def _picture(report: FsckReport, with_files: bool, dry_run: bool) -> RenderableType:
    parts: list[RenderableType] = []
    if (repaired := report.repair) is not None:
        if repaired.version is not None:
            parts.append(Text(f"version {repaired.version} was created", "green"))
        would = "would be saved: " if dry_run else "saved: "
        parts += [Text(would + line, "green") for line in repaired.saved]
        parts += [Text(f"lost: {line}", "red") for line in repaired.lost]
        if not repaired.saved and not repaired.lost:
            parts.append(Text("nothing to repair"))
    files = f", {counted(report.files, 'file')} of tables checked" if with_files else ""
    versions, nodes = counted(report.versions, "version"), counted(report.nodes, "node")
    read = f"{versions}, {nodes} and {counted(report.definitions, 'definition')} read{files}"
    parts.append(Text(f"{read}: {'sound' if report.is_sound else 'not sound'}", "bold"))
    if report.findings:
        table = grid("what", "file", "versions", "affected", "why")
        for one in report.findings[:_SHOWN]:
            style = "dim" if one.kind in HARMLESS else "red"
            table.add_row(
                Text(one.kind, style),
                Text(one.path),
                Text(ranges_text(one.versions, "-")),
                Text(", ".join(one.affected)),
                Text(one.message),
            )
        parts.append(table)
    if len(report.findings) > _SHOWN:
        parts.append(Text(f"and {len(report.findings) - _SHOWN} more; --json has all", "dim"))
    return Group(*parts)
