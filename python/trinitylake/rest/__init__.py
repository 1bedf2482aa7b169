"""An Iceberg REST catalog server over a lakehouse: every engine that speaks the protocol reads and writes its tables.

```python
with trinitylake.rest.serve(lake) as url:
    catalog = RestCatalog("lake", uri=url)
```

It needs the extra `rest`: `pip install 'trinitylake[rest]'`.
"""

from typing import TYPE_CHECKING, Any

from trinitylake.extras import needing

with needing("the REST server"):
    from trinitylake.rest.http.server import RestServer, serve
    from trinitylake.rest.options import S3Access, ServerOptions
    from trinitylake.rest.security.principals import THIS_PROGRAM

if TYPE_CHECKING:
    from trinitylake.rest.security.jwt_bearer import JwtSettings

__all__ = ["THIS_PROGRAM", "JwtSettings", "RestServer", "S3Access", "ServerOptions", "serve"]


def __getattr__(name: str) -> Any:
    if name == "JwtSettings":  # loads a library for cryptography
        from trinitylake.rest.security.jwt_bearer import JwtSettings

        return JwtSettings
    raise AttributeError(f"module 'trinitylake.rest' has no attribute {name!r}")
