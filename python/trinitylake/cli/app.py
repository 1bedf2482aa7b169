"""The application: the list of commands with their modules, and the exit codes.

A command is imported when it runs. `--help` and completion import no command, but use `COMMANDS`; a test compares
`COMMANDS` with the commands.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand

from trinitylake.cli.plain_values import PlainGroup
from trinitylake.errors import (
    CommitConflict,
    CorruptFile,
    InvalidArgument,
    InvalidLocation,
    InvalidName,
    NotALakehouse,
    ObjectNotFound,
    TrinityLakeError,
    VersionExpired,
    VersionNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


FAILED = 1
USAGE = 2
CONFLICT = 3
NOT_FOUND = 4
#: Exit code if a command read a damaged file, or `fsck` found damage.
CORRUPT = 5
#: Exit code after Ctrl-C, as in shells.
INTERRUPTED = 130


class Entry(NamedTuple):
    """Module of a command in `trinitylake.cli`, and the first sentence of its help."""

    module: str
    help: str


COMMANDS = {
    "create": Entry("catalog", "Create a lakehouse."),
    "ls": Entry("catalog", "List namespaces, or the objects in one."),
    "show": Entry("catalog", "Describe the lakehouse, or a table, view or namespace."),
    "head": Entry("rows", "Print the first rows of a table."),
    "count": Entry("rows", "Count the rows of a table."),
    "cat": Entry("rows", "Write the rows of a table as CSV, JSON lines or Parquet."),
    "ingest": Entry("ingest", "Append JSON lines or CSV to a table as they arrive."),
    "load": Entry("load", "Load CSV, JSON or Parquet files into a table, in one version."),
    "sql": Entry("sql", "Run SQL over tables and views, with DuckDB."),
    "log": Entry("history", "Print the newest versions, newest first."),
    "diff": Entry("history", "Print the differences between two versions."),
    "changes": Entry("history", "Print what each transaction changed since a version."),
    "rollback": Entry("history", "Restore an older version, all objects or some."),
    "erase": Entry("erase", "Erase rows from a table, its history and the storage."),
    "undrop": Entry("history", "Restore a dropped object from an older version."),
    "txn": Entry("saved_transactions", "Saved transactions: list, show, commit, roll back."),
    "tag": Entry("history", "Tags, which are named versions: create, drop, list."),
    "export": Entry("copies", "Copy the lakehouse to another root."),
    "restore": Entry("copies", "Create a lakehouse at --root from a backup."),
    "import": Entry("copies", "Import the objects of another Iceberg catalog in one version."),
    "relocate": Entry("copies", "Record the new root of a lakehouse that was moved or copied."),
    "expire": Entry("maintenance", "Delete old versions, by retention or by these options."),
    "vacuum": Entry("maintenance", "Delete files that no version or transaction references."),
    "compact": Entry("maintenance", "Rebuild the tree, or compact small data files of tables."),
    "maintain": Entry("maintenance", "Run the maintenance policy: compact, expire, vacuum."),
    "fsck": Entry("fsck", "Check every rule of the format."),
    "stats": Entry("inspect", "Count objects, tree nodes and bytes."),
    "tree": Entry("inspect", "Draw the tree of node files."),
    "serve": Entry("serve", "Serve the lakehouse as an Iceberg REST catalog and a web page."),
    "token": Entry("token", "Create, list and revoke access tokens of `serve`."),
    "page": Entry("serve", "Write the web page as files that need no server."),
    "demo": Entry("demo", "Load real data; show transactions, conflicts and history."),
}


class Commands(PlainGroup):
    """The group of all commands, which imports a command on demand, and converts every error to an exit code."""

    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self._is_listing:
            return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name].help, rich_markup_mode=None)
        return loaded(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # typer suggests names from this dictionary after a typo.
        self.commands = dict.fromkeys(COMMANDS, TyperCommand(name=None))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            code = ended_by(error, "--json" in given)
        sys.exit(code or 0)


def loaded(name: str) -> Any:
    """Import the module of a command and return the command."""
    from typer.main import get_command_from_info, get_group_from_info

    import_module(f"trinitylake.cli.{COMMANDS[name].module}")
    for group in app.registered_groups:
        if group.name == name:
            return get_group_from_info(
                group, pretty_exceptions_short=False, suggest_commands=True, rich_markup_mode=None
            )
    [command] = [one for one in app.registered_commands if one.name == name]
    return get_command_from_info(command, pretty_exceptions_short=False, rich_markup_mode=None)


def ended_by(error: Exception, as_json: bool) -> int:
    """Print a usage error or an unexpected error, and return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return USAGE
    # After Ctrl-C DuckDB raises a RuntimeError with this message.
    if isinstance(error, typer.Abort) or str(error) == "Query interrupted":
        return INTERRUPTED
    from trinitylake.cli import output

    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = "" if context is None else f"try '{context.command_path} --help'"
        message = error.format_message().replace(": Value error, ", ": ")  # pydantic adds these words
        if message.startswith("No such option") and context is not None and context.parent is None:
            message += " before a command: write options after it, as in trinitylake ls --root PATH"
        elif context is not None and re.match(r"No such option: -\d", message):
            hint = f"write -- before a negative version, as in '{context.command_path} -- -1'"
        output.emit_failure("usage", message, as_json, {"hint": hint} if hint else {})
        return USAGE
    if isinstance(error, OSError) and error.strerror:  # a full disk, or a file that cannot be opened
        place = f": {error.filename}" if error.filename else ""
        output.emit_failure("file_error", f"{error.strerror}{place}", as_json, {})
        return FAILED
    output.emit_unexpected(error, as_json)
    return FAILED


def exit_code(error: TrinityLakeError) -> int:
    """The exit code for an error."""
    match error:
        case InvalidArgument() | InvalidName() | InvalidLocation():
            return USAGE
        case CommitConflict():
            return CONFLICT
        case ObjectNotFound() | VersionNotFound() | VersionExpired() | NotALakehouse():
            return NOT_FOUND
        case CorruptFile():
            return CORRUPT
        case _:
            return FAILED


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="TrinityLake: a lakehouse catalog that consists of files.",
    epilog="Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.",
)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("trinitylake"))
        raise typer.Exit
