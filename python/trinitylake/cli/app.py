"""The command line application: which commands there are, and where each of them is.

A command is imported when it is run. The list of them, for `--help` and for completion, stands here, so that neither
loads any; a test holds it against what the commands say of themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand

from trinitylake.cli.exit_codes import FAILED, INTERRUPTED, USAGE
from trinitylake.cli.plain_values import PlainGroup

if TYPE_CHECKING:
    from collections.abc import Sequence


class Entry(NamedTuple):
    """The module of a command, below `trinitylake.cli`, and the first sentence of its help."""

    module: str
    help: str


COMMANDS = {
    "create": Entry("catalog", "Create a lakehouse."),
    "ls": Entry("catalog", "List namespaces, or the objects in one."),
    "show": Entry("catalog", "Describe the lakehouse, or a table, view or namespace."),
    "head": Entry("rows", "Print the first rows of a table."),
    "count": Entry("rows", "Count the rows of a table."),
    "cat": Entry("rows", "Write the rows of a table as CSV, JSON lines or Parquet."),
    "load": Entry("load", "Load CSV, JSON or Parquet files into a table, in one version."),
    "sql": Entry("sql", "Run SQL over tables and views, with DuckDB."),
    "log": Entry("history", "Print the newest versions, newest first."),
    "diff": Entry("history", "Print what differs between two versions, and what was done."),
    "changes": Entry("saved_transactions", "Print what each transaction changed since a version."),
    "history": Entry("object_history", "Print the versions that changed one object."),
    "rollback": Entry("history", "Go back to an older version, with all objects or some."),
    "undrop": Entry("history", "Bring dropped objects back as an older version has them."),
    "txn": Entry("saved_transactions", "Saved transactions: list them, look at one, end one."),
    "tag": Entry("tag", "Tags, which are named versions: create, drop, list."),
    "export": Entry("export", "Copy the lakehouse to another root."),
    "restore": Entry("export", "Make a lakehouse at --root out of a backup."),
    "import": Entry("import_", "Import what another Iceberg catalog has, in one version."),
    "relocate": Entry("relocate", "Record where the lakehouse lies, after it was moved or copied."),
    "expire": Entry("expire", "Delete old versions."),
    "vacuum": Entry("vacuum", "Delete files that nothing kept reaches any more."),
    "compact": Entry("compact", "Build the tree anew, or put small files of tables together."),
    "maintain": Entry("maintain", "Run the maintenance policy: compact, expire, vacuum."),
    "fsck": Entry("fsck", "Check every rule of the format."),
    "stats": Entry("inspect", "Count objects, tree nodes and bytes."),
    "tree": Entry("inspect", "Draw the tree of node files."),
    "serve": Entry("serve", "Serve the lakehouse to Iceberg's clients and to browsers."),
    "page": Entry("page", "Write the page for browsers that needs no server."),
    "demo": Entry("demo", "Load real data, change it, collide, travel in time, roll back."),
}


class Commands(PlainGroup):
    """The commands, each imported when it is asked for. Errors end all of them in one way."""

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
        # Names to suggest after a typing error.
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
    """A command of the table, with its module imported."""
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
    """Tell of what ended a command, and return the exit code: a wrong use of it, or what nobody expected."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        return USAGE
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    from trinitylake.cli import output

    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = "" if context is None else f"try '{context.command_path} --help'"
        output.emit_failure("usage", error.format_message(), as_json, {"hint": hint} if hint else {})
        return USAGE
    output.emit_unexpected(error, as_json)
    return FAILED


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="TrinityLake: a lakehouse that is nothing but files.",
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
