"""Applications that send the files of the web page, which are the same for every lakehouse and caller."""

from __future__ import annotations

import hashlib

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.page import HEADERS, NOT_BUILT, Asset, assets, index_of_server, is_built


def asset_responders() -> dict[str, ASGIApp]:
    """ASGI applications by path: `/` for the page, `/ui/…` for its parts. In a build without the page, `/` is a 404."""
    if not is_built():
        return {"/": Response(f"{NOT_BUILT}\n", 404, HEADERS, "text/plain")}
    index = index_of_server()
    paths = {"/": index, "/ui/": index, **{f"/{one.path}": one for one in assets()}}
    return {path: _responder(asset) for path, asset in paths.items()}


def _responder(asset: Asset) -> ASGIApp:
    tag = f'"{hashlib.sha256(asset.content).hexdigest()[:32]}"'
    # Browsers revalidate each file, so that all files are of the same build.
    headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"if-none-match" and value.decode("latin-1") == tag for name, value in scope["headers"]):
            response = Response(status_code=304, headers=headers)
        else:
            response = Response(asset.content, headers=headers, media_type=asset.media_type)
        await response(scope, receive, send)

    return respond
