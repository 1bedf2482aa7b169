"""An Iceberg REST catalog server over a lakehouse: every engine that speaks the protocol reads and writes its tables.

```python
with trinitylake.rest.serve(lake) as server:
    catalog = RestCatalog("lake", uri=server.url, token=server.token)
```

It needs the extra `rest`: `pip install 'trinitylake[rest]'`.
"""

from trinitylake.rest.server import RestServer, serve

__all__ = ["RestServer", "serve"]
