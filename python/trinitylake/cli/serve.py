"""`serve` and `page`: the REST server, and the web page as files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer
from rich import filesize
from rich.text import Text

import trinitylake
from trinitylake.cli.command import Json, Options, Output, Root, command, storage_options
from trinitylake.cli.output import emit, emit_warning
from trinitylake.page import NOT_BUILT, is_built, write_files


@command
def serve(
    root: Root,
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8181, min=0, max=65535, help="Port; 0 chooses a free one."),
    token_file: Path | None = typer.Option(
        None,
        envvar="TRINITYLAKE_TOKEN_FILE",
        help="File of tokens, from `token create`. Without one only programs on this machine have access.",
    ),
    read_only: bool = typer.Option(
        False, "--read-only", help="No client may change anything, whatever its token allows."
    ),
    jwt_issuer: str = typer.Option("", help="Accept JSON Web Tokens of this issuer."),
    jwt_audience: str = typer.Option("", help="Required audience of JSON Web Tokens."),
    jwt_keys: str = typer.Option("", help="Key set (JWKS) of the issuer: a file or an https:// URL."),
    jwt_grants_claim: str = typer.Option("trinitylake", help="The claim with role:pattern grants."),
    certificate: Path | None = typer.Option(None, help="Certificate for TLS (PEM)."),
    key: Path | None = typer.Option(None, help="Private key of the certificate (PEM)."),
    behind_proxy: bool = typer.Option(False, "--behind-proxy", help="A reverse proxy in front terminates TLS."),
    max_connections: int = typer.Option(1000, min=1, help="Concurrency limit of connections; others get 503."),
    override_locations: bool = typer.Option(
        False,
        "--override-locations",
        help="Replace requested locations outside of the lakehouse instead of refusing them.",
    ),
    vend_role: str = typer.Option(
        "", metavar="ARN", help="Give clients temporary S3 credentials of this role, each for one table."
    ),
    vend_seconds: int = typer.Option(3600, min=900, max=43200, help="Lifetime of temporary credentials in seconds."),
    sts_endpoint: str = typer.Option("", help="STS endpoint; default: that of the store."),
    sign_requests: bool = typer.Option(
        False, "--sign-requests", help="Sign requests to S3 for clients without credentials."
    ),
    page: bool = typer.Option(True, "--page/--no-page", help="Serve the web page at /."),
    page_rows: bool | None = typer.Option(
        None,
        "--page-rows/--no-page-rows",
        help="Show rows of tables on the page to their readers; default: only without tokens.",
    ),
    maintenance_every: str | None = typer.Option(
        None, metavar="TIME", help='Run the maintenance policy at this interval: "6 hours". Never by default.'
    ),
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Serve the lakehouse as an Iceberg REST catalog and a web page.

    Runs until it is interrupted.
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
            is_read_only=read_only,
            maintenance_every=maintenance_every,
        ),
    )
    log_to_standard_error()
    if page and not is_built():
        emit_warning(NOT_BUILT)
    text = Text(f"serving {server.url}{', read-only' if read_only else ''}")
    emit({"url": server.url, "read_only": read_only}, text, as_json)
    with suppress(KeyboardInterrupt):  # after a clean shutdown
        server.run_process()


@command
def page(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder for the files of the page."),
    lakehouse: str = typer.Option(
        ..., metavar="URL", help="URL of the root of the lakehouse, relative to the page or absolute."
    ),
    sql: Path | None = typer.Option(
        None,
        metavar="PACKAGE",
        help="Adds SQL: the npm package @duckdb/duckdb-wasm, as a folder or a file of `npm pack`.",
        exists=True,
    ),
) -> Output:
    """Write the web page as files that need no server.

    The page reads the lakehouse over HTTP.
    """
    files = write_files(folder, lakehouse, sql)
    size_bytes = sum(path.stat().st_size for path in files)
    document = {"files": len(files), "size_bytes": size_bytes, "index": str(folder / "index.html")}
    return document, Text(f"{len(files)} files, {filesize.decimal(size_bytes)}: {folder / 'index.html'}")
