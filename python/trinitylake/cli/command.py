"""Registration of commands, the options that many commands have, and completion of names."""

from __future__ import annotations

import functools
import getpass
import inspect
import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import typer

import trinitylake
from trinitylake.base.secret_values import is_reference, is_secret_name, with_values_read
from trinitylake.cli.app import COMMANDS, app, exit_code
from trinitylake.cli.plain_values import PlainCommand, PlainGroup
from trinitylake.errors import InvalidArgument, TrinityLakeError

if TYPE_CHECKING:
    from rich.console import RenderableType

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

#: The lakehouse that the options `--root` and `--option` of a command describe.
Lake: TypeAlias = "trinitylake.Lakehouse"
#: The values of the options `--message` and `--author`, as keyword arguments.
LogInfo: TypeAlias = dict[str, Any]
#: The document that a command prints with `--json`, what it prints for people, and its exit code if that is not 0; None
#: for a command that has printed by itself.
Output: TypeAlias = "tuple[Any, RenderableType] | tuple[Any, RenderableType, int] | None"


#: Maximum number of names that completion offers.
NAMES_MAX = 200
_WORD = re.compile(r"[\w.-]+")
Kind = Literal["namespace", "table", "view"]
Command = TypeVar("Command", bound=Callable[..., Any])


def command(function: Command, group: typer.Typer = app) -> Command:
    """Register a command of the application or of a group.

    The parameters `lake` and `log` of the function have the types `Lake` and `LogInfo`. Every command has the option
    `--json`. The function returns its `Output`.

    A `TrinityLakeError` ends the command with a message and an exit code instead of a traceback.
    """
    given = inspect.signature(function, eval_str=True).parameters
    options = {name: (one.annotation, one.default) for name, one in given.items()}
    has_lake, has_log = (options.pop(name, None) is not None for name in ("lake", "log"))
    has_json = options.pop("as_json", None) is not None
    if has_lake:
        options = {"root": (Root, inspect.Parameter.empty), **options}
    if has_log:
        options |= {"message": (Message, ""), "author": (Author, "")}
    if has_lake:
        options["options"] = Options, None
    options["as_json"] = Json, False

    @functools.wraps(function)
    def run(**values: Any) -> None:
        as_json = values["as_json"] if has_json else values.pop("as_json")
        try:
            if values.get("author") == "":
                values["author"] = _user()
            if has_log:
                values["log"] = {name: values.pop(name) for name in ("message", "author")}
            if has_lake:
                values["lake"] = open_lakehouse(values.pop("root"), values.pop("options"))
            if (output := function(**values)) is not None:
                from trinitylake.cli.output import emit

                document, picture, *code = output
                emit(document, picture, as_json)
                if code:
                    raise typer.Exit(code[0])
        except TrinityLakeError as error:
            from trinitylake.cli.output import emit_error

            emit_error(error, as_json)
            raise typer.Exit(exit_code(error)) from None

    kind = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, annotation=one, default=default) for name, (one, default) in options.items()]
    )
    run.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    group.command(name=function.__name__.rstrip("_"), cls=PlainCommand)(run)
    return function


def group(name: str, *functions: Callable[..., Any]) -> None:
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


def object_names(*kinds: Kind) -> Callable[[typer.Context, str], list[str]]:
    """Completion of an argument that names an object of one of these kinds.

    It lists the objects of one lakehouse once, and never prints anything. After an error it offers no names. Names that
    a shell would not read as one word are not offered.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                return _names(ctx, kinds, incomplete)
        except Exception:  # an error message would appear in the command line that the user types
            return []

    return complete


def _names(ctx: typer.Context, kinds: tuple[Kind, ...], incomplete: str) -> list[str]:
    root = ctx.params.get("root") or os.environ.get("TRINITYLAKE_ROOT")
    if not root:
        return []
    state = open_lakehouse(root, ctx.params.get("options"))._state()
    namespace = incomplete.rpartition(".")[0]
    found: list[str] = []
    if "namespace" in kinds or not namespace:
        found += [name for name, _ in state.names("namespace", None)]
    for kind in kinds:
        if kind != "namespace" and namespace:
            found += [f"{one}.{name}" for one, name in state.names(kind, namespace, NAMES_MAX)]
    fitting = [name for name in found if name.startswith(incomplete) and _WORD.fullmatch(name)]
    return fitting[:NAMES_MAX]
