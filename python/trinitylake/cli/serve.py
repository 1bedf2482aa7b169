"""`serve`: the lakehouse as an Iceberg REST catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from trinitylake.cli.app import Json, Options, Root, command, open_lakehouse
from trinitylake.cli.output import emit
from trinitylake.errors import InvalidArgument


@command
def serve(
    root: Root,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for one that is free.")] = 8181,
    token_file: Annotated[
        Path | None, typer.Option(help="Tokens, one a line, as they are or as sha256:HEX.", show_default="a new token")
    ] = None,
    no_token: Annotated[bool, typer.Option("--no-token", help="Let every program on this machine in.")] = False,
    certificate: Annotated[Path | None, typer.Option(help="A certificate for TLS (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front ends TLS.")] = False,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Serve the lakehouse as an Iceberg REST catalog until interrupted."""
    try:
        from trinitylake import rest
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"serving needs the extra 'rest' ({error}): pip install 'trinitylake[rest]'") from error
    server = rest.serve(
        open_lakehouse(root, options),
        host,
        port,
        token_file=token_file,
        without_token=no_token,
        certificate_file=certificate,
        key_file=key,
        behind_proxy=behind_proxy,
    )
    text = f"serving {server.url}" + (f"\ntoken {server.token}" if server.token else "")
    emit({"url": server.url, "token": server.token}, Text(text), as_json)
    try:
        server.run()
    except KeyboardInterrupt:  # the server has ended in good order by now
        return
