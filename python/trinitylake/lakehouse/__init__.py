"""The lakehouse: what users hold, its statements, its transactions, its history and its bulk operations.

`Lakehouse`, `ViewAt` and `Transaction` share their methods for reading (`reader.Reader`) and writing
(`statements.Statements`). Rooms above use these classes, `history` for what happened, `settings` for what can be set,
and `bulk` for many objects at once. Catalogs and servers, which are built on top, are not known here.
"""

from trinitylake.lakehouse.lakehouse import Lakehouse, create, open

__all__ = ["Lakehouse", "create", "open"]
