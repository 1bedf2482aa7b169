"""Iceberg REST catalog server over a lakehouse, for all engines with an Iceberg REST client.

```python
with trinitylake.rest.serve(lake) as url:
    catalog = RestCatalog("lake", uri=url)
```

It needs the extra `rest`: `pip install 'trinitylake[rest]'`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trinitylake.base.optional_dependencies import not_installed, optional_dependency

for _library in ("starlette", "uvicorn"):
    if find_spec(_library) is None:
        raise not_installed("the REST server", _library)

if TYPE_CHECKING:
    from trinitylake.rest.http.server import RestServer, serve
    from trinitylake.rest.options import S3Access, ServerOptions
    from trinitylake.rest.security.authorization import THIS_PROGRAM
    from trinitylake.rest.security.jwt_bearer import JwtSettings

__all__ = ["THIS_PROGRAM", "JwtSettings", "RestServer", "S3Access", "ServerOptions", "serve"]

# Imported at first use: name -> module. Worker processes need none of them, and only some servers need cryptography.
_LAZY = {
    "THIS_PROGRAM": "trinitylake.rest.security.authorization",
    "JwtSettings": "trinitylake.rest.security.jwt_bearer",
    "RestServer": "trinitylake.rest.http.server",
    "S3Access": "trinitylake.rest.options",
    "ServerOptions": "trinitylake.rest.options",
    "serve": "trinitylake.rest.http.server",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trinitylake.rest' has no attribute {name!r}")
    with optional_dependency("the REST server"):
        value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
