"""The lakehouse: its handles, statements, transactions, history and bulk operations.

`Lakehouse`, `LakehouseVersion` and `Transaction` share their methods for reading (`reader.Reader`) and writing
(`statements.Statements`). Layers above use these classes, `history` for the log, `settings` for what can be set, and
`bulk` for many objects at once. Nothing here depends on catalogs and servers, which are built on top.
"""

from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.opening import create, open

__all__ = ["Lakehouse", "create", "open"]
