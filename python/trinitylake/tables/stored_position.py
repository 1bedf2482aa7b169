"""Positions in tables, stored as properties of namespaces.

A consumer of changes has the namespace `_consumers.NAME`, a producer of rows `_producers.NAME`. The key of the property
is the id of the table, the value of the property is the position in that table. So a position is versioned, exported,
checked and rolled back like any object, needs one look-up in the latest version, and remains when versions expire. The
position and the rows commit in one transaction. Two transactions that move the same position change the same object,
so one of them fails with `CommitConflict`.
"""

from __future__ import annotations

from trinitylake import _core
from trinitylake.definitions import new_namespace_def, parse_namespace_def, serialize


class StoredPosition:
    """The stored position in one table, read and written within a transaction.

    Attributes:
        text: the position; None if there is none yet.
    """

    def __init__(self, transaction: _core.Transaction, namespace: str, table_id: str) -> None:
        self._transaction, self._namespace, self._table_id = transaction, namespace, table_id
        stored = transaction.read("namespace", namespace)
        self._write = transaction.create if stored is None else transaction.replace
        self._definition = new_namespace_def() if stored is None else parse_namespace_def(stored)
        self.text: str | None = self._definition.properties.get(table_id)

    def store(self, text: str | None) -> None:
        """Set the position, or remove it. Call it at most once for each instance."""
        if text is None:
            self._definition.properties.pop(self._table_id, None)
        else:
            self._definition.properties[self._table_id] = text
        self._write("namespace", self._namespace, "", serialize(self._definition))


def positions_in(version: _core.Version, parent: str, table_id: str) -> dict[str, str]:
    """The positions in one table that a version stores in the namespaces below `parent`, by namespace."""
    namespaces = version.names("namespace", parent)
    definitions = version.read_many("namespace", namespaces)
    stored = {
        namespace: parse_namespace_def(definition).properties
        for (namespace, _), definition in zip(namespaces, definitions, strict=True)
        if definition is not None
    }
    return {namespace: properties[table_id] for namespace, properties in stored.items() if table_id in properties}
