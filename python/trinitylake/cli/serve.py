"""`serve`: the lakehouse as an Iceberg REST catalog, and as a page for browsers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import trinitylake
from trinitylake.cli.command import Json, Options, Root, command, storage_options
from trinitylake.cli.output import emit, emit_warning
from trinitylake.page import NOT_BUILT, is_built


@command
def serve(
    root: Root,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for one that is free.")] = 8181,
    token_file: Annotated[
        Path | None, typer.Option(help="Tokens, one a line: TOKEN or sha256:HEX, a name, and role:pattern grants.")
    ] = None,
    jwt_issuer: Annotated[str, typer.Option(help="Let JSON Web Tokens of this issuer in.")] = "",
    jwt_audience: Annotated[str, typer.Option(help="That they must be meant for.")] = "",
    jwt_keys: Annotated[str, typer.Option(help="Key set (JWKS) of the issuer: a file or an https:// URL.")] = "",
    jwt_grants_claim: Annotated[str, typer.Option(help="The claim with role:pattern grants.")] = "trinitylake",
    certificate: Annotated[Path | None, typer.Option(help="A certificate for TLS (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front ends TLS.")] = False,
    max_connections: Annotated[int, typer.Option(min=1, help="More are answered with 503.")] = 1000,
    override_locations: Annotated[
        bool, typer.Option("--override-locations", help="Choose a location where a client asks for one outside.")
    ] = False,
    vend_role: Annotated[
        str, typer.Option(metavar="ARN", help="Give clients temporary S3 credentials of this role, for one table each.")
    ] = "",
    vend_seconds: Annotated[int, typer.Option(min=900, max=43200, help="How long they work.")] = 3600,
    sts_endpoint: Annotated[str, typer.Option(help="The service that gives them; by default the store's.")] = "",
    sign_requests: Annotated[
        bool, typer.Option("--sign-requests", help="Sign requests to S3 for clients without credentials.")
    ] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Show the lakehouse in a browser, at /.")] = True,
    page_rows: Annotated[
        bool | None,
        typer.Option(
            "--page-rows/--no-page-rows",
            help="Show first rows of tables there to their readers; without tokens that is so anyway.",
        ),
    ] = None,
    maintenance_every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help='Run the maintenance policy at this interval: "6 hours". Never by default.'),
    ] = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Serve the lakehouse to Iceberg's clients and to browsers.

    As an Iceberg REST catalog and with a page, until interrupted.
    """
    from trinitylake import rest
    from trinitylake.rest.http.observation import log_to_standard_error

    read_options = storage_options(options)
    jwt = None
    if jwt_issuer or jwt_audience or jwt_keys:
        jwt = rest.JwtSettings(jwt_issuer, jwt_audience, jwt_keys, jwt_grants_claim)
    s3_access = None
    if vend_role or sign_requests:
        s3_access = rest.S3Access(
            role_arn=vend_role,
            sts_endpoint=sts_endpoint,
            seconds=vend_seconds,
            signs_requests=sign_requests,
            storage_options=read_options,
        )
    server = rest.serve(
        trinitylake.open(root, storage_options=read_options),
        host,
        port,
        token_file=token_file,
        jwt=jwt,
        certificate_file=certificate,
        key_file=key,
        behind_proxy=behind_proxy,
        options=rest.ServerOptions(
            max_connections=max_connections,
            overrides_locations=override_locations,
            s3_access=s3_access,
            has_page=page,
            page_shows_rows=page_rows,
            maintenance_every=maintenance_every,
        ),
    )
    log_to_standard_error()
    if page and not is_built():
        emit_warning(NOT_BUILT)
    emit({"url": server.url}, Text(f"serving {server.url}"), as_json)
    try:
        server.run_process()
    except KeyboardInterrupt:  # the server has ended in good order by now
        return
