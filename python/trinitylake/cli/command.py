"""Registration of commands, and the options that many commands have."""

from __future__ import annotations

import functools
import getpass
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

import trinitylake
from trinitylake.base.secret_values import is_reference, is_secret_name, with_values_read
from trinitylake.cli.app import COMMANDS, app, exit_code
from trinitylake.cli.plain_values import PlainCommand, PlainGroup
from trinitylake.errors import InvalidArgument, TrinityLakeError

Root = Annotated[
    str,
    typer.Option(
        "--root", envvar="TRINITYLAKE_ROOT", help="Root of the lakehouse: a local path or a URI.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors as JSON on standard error.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="Storage option, repeatable. KEY=@FILE and KEY=env:NAME keep a secret out of the command line.",
    ),
]
#: References to a version, as examples for help texts.
REFERENCES = "14, -1, 2026-11-24, 2026-11-24T08:00+02:00, '2 hours ago' or tag:NAME"
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="VERSION", help=f"A version: {REFERENCES}; the latest by default.", show_default=False
    ),
]
Message = Annotated[str, typer.Option("--message", "-m", help="Message for the log.")]
Author = Annotated[
    str,
    typer.Option(
        "--author", envvar="TRINITYLAKE_AUTHOR", help="Author for the log; default: the user.", show_default=False
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what the command would do, and write nothing.")]

Command = TypeVar("Command", bound=Callable[..., None])


def command(function: Command, group: typer.Typer = app) -> Command:
    """Register a command of the application or of a group.

    A `TrinityLakeError` ends the command with a message and an exit code instead of a traceback.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            if kwargs.get("author") == "":
                kwargs["author"] = _user()
            function(*args, **kwargs)
        except TrinityLakeError as error:
            from trinitylake.cli.output import emit_error

            emit_error(error, bool(kwargs.get("as_json")))
            raise typer.Exit(exit_code(error)) from None

    group.command(name=function.__name__.rstrip("_"), cls=PlainCommand)(run)
    return function


def group(name: str, *functions: Callable[..., None]) -> None:
    """Register a group of commands, such as `tag` with `create`, `drop` and `ls`."""
    commands = typer.Typer(cls=PlainGroup, no_args_is_help=True, help=COMMANDS[name].help)
    app.add_typer(commands, name=name)
    for function in functions:
        command(function, commands)


def _user() -> str:
    """Name of the operating system's user; "" if the user has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def open_lakehouse(root: str, options: list[str] | None) -> trinitylake.Lakehouse:
    """Open the lakehouse that the options `--root` and `--option` describe."""
    return trinitylake.open(root, storage_options=storage_options(options))


def storage_options(texts: list[str] | None) -> dict[str, str]:
    """The storage options in the values of `--option`."""
    return secret_key_values("--option", texts)


def secret_key_values(flag: str, texts: list[str] | None) -> dict[str, str]:
    """Parse `KEY=VALUE` strings, and resolve references to secrets (`trinitylake.base.secret_values`).

    Warns if a secret itself is on the command line.
    """
    given = key_values(texts)
    for name, value in given.items():
        if is_secret_name(name) and not is_reference(value):
            from trinitylake.cli.output import emit_warning

            emit_warning(
                f"{name} is visible in the process list of this machine: "
                f"use {flag} {name}=@FILE or {flag} {name}=env:NAME"
            )
    return with_values_read(given)


def key_values(texts: list[str] | None) -> dict[str, str]:
    """Parse `["a=1"]` to `{"a": "1"}`. Raises `InvalidArgument` for a string that is not `KEY=VALUE`."""
    result = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"expected KEY=VALUE, got {text!r}")
        result[key] = value
    return result
