"""`token create|ls|revoke`: create, list and revoke access tokens of `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.command import Json, Output, group
from trinitylake.cli.output import emit, grid
from trinitylake.rest.security.tokens import create_token, listed_tokens, revoke_tokens

TokenFile = Annotated[
    Path,
    typer.Option("--token-file", envvar="TRINITYLAKE_TOKEN_FILE", help="The file that `serve --token-file` reads."),
]
_DEFAULT_FILE = Path("trinitylake-tokens")
Name = Annotated[str, typer.Argument(help="Name of the person or program; it is the author of its commits.")]
_Patterns = list[str] | None


def create(
    name: Name,
    read: _Patterns = typer.Option(
        None, "--read", metavar="PATTERN", help='May read matching objects: "shop.*" or "*"; repeatable.'
    ),
    write: _Patterns = typer.Option(
        None, "--write", metavar="PATTERN", help="May also write tables and views; repeatable."
    ),
    admin: _Patterns = typer.Option(None, "--admin", metavar="PATTERN", help="May also write namespaces; repeatable."),
    token_file: TokenFile = _DEFAULT_FILE,
    as_json: Json = False,
) -> None:
    """Create a token and print it.

    The file contains only its hash, so it cannot be printed again. Without --read, --write or --admin the token has no
    rights.
    """
    roles = {"reader": read, "writer": write, "admin": admin}
    grants = [f"{role}:{pattern}" for role, patterns in roles.items() for pattern in patterns or ()]
    made = create_token(token_file, name, grants)
    rights = f"has {' '.join(grants)}" if grants else "has no rights: give --read, --write or --admin"
    emit({"token": made, "name": name, "grants": grants, "token_file": str(token_file)}, Text(made), as_json)
    if not as_json:
        typer.echo(f"{name} {rights}\nstored as a hash in {token_file}; restart servers that use the file", err=True)


def ls(token_file: TokenFile = _DEFAULT_FILE) -> Output:
    """List names and rights, without tokens."""
    listed = listed_tokens(token_file)
    picture = grid("name", "rights")
    for one in listed:
        picture.add_row(Text(one.name), Text(" ".join(one.grants)) if one.grants else Text("none", "yellow"))
    return [one._asdict() for one in listed], picture


def revoke(name: Name, token_file: TokenFile = _DEFAULT_FILE) -> Output:
    """Remove the tokens of a name."""
    revoke_tokens(token_file, name)
    text = Text(f"{name} has no token any more; restart servers that use {token_file}")
    return {"name": name, "token_file": str(token_file)}, text


group("token", create, ls, revoke)
