"""What every command shares: the application it registers with, common options, and how errors end it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

import trinitylake
from trinitylake.cli.exit_codes import exit_code
from trinitylake.cli.output import emit_error
from trinitylake.errors import InvalidArgument, TrinityLakeError

Root = Annotated[
    str,
    typer.Option(
        "--root", envvar="TRINITYLAKE_ROOT", help="Root of the lakehouse: a local path or a URI.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors as JSON on standard error.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A storage option; may be repeated.")
]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="TrinityLake: a lakehouse that is nothing but files.",
    epilog="Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.",
)
Command = TypeVar("Command", bound=Callable[..., None])


def command(function: Command, group: typer.Typer = app) -> Command:
    """Register a command, of the application or of a group of commands.

    An error of ours ends it with a message and an exit code instead of a traceback.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except TrinityLakeError as error:
            emit_error(error, bool(kwargs.get("as_json")))
            raise typer.Exit(exit_code(error)) from None

    group.command(name=function.__name__.rstrip("_"))(run)
    return function


def open_lakehouse(root: str, options: list[str] | None) -> trinitylake.Lakehouse:
    """The lakehouse that the common options name."""
    return trinitylake.open(root, storage_options=key_values(options))


def key_values(texts: list[str] | None) -> dict[str, str]:
    """`["a=1"]` as `{"a": "1"}`. Raises `InvalidArgument` where the `=` is missing."""
    result = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"expected KEY=VALUE, got {text!r}")
        result[key] = value
    return result


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(trinitylake.__version__)
        raise typer.Exit
