"""Updates applied to table metadata, one after the other: PyIceberg's own code, without a copy of all the metadata."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate, _apply_table_update, _TableMetadataUpdateContext
from pyiceberg.utils.datetime import datetime_to_millis


class MetadataBuilder:
    """Applies updates one by one. `metadata` is the result so far; nothing that was handed out changes."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.metadata = base
        self._context = _TableMetadataUpdateContext()

    def apply(self, update: TableUpdate) -> None:
        """Apply one update. Raises `ValueError` if it does not fit."""
        self.metadata = _apply_table_update(update, self.metadata, self._context)

    def build(self) -> TableMetadata:
        """The result, checked, with a time of its own. Raises PyIceberg's `ValidationError`."""
        result = self.metadata
        if result is self.base:
            return result
        if result.last_updated_ms <= self.base.last_updated_ms:
            result = result.model_copy(update={"last_updated_ms": later_than(self.base)})
        result.spec().check_compatible(result.schema())
        result.sort_order().check_compatible(result.schema())
        return result


def apply_updates(base: TableMetadata, updates: Iterable[TableUpdate]) -> TableMetadata:
    """`base` with all updates applied; shares with it what they leave alone."""
    builder = MetadataBuilder(base)
    for update in updates:
        builder.apply(update)
    return builder.build()


def later_than(metadata: TableMetadata) -> int:
    """The present in milliseconds since the epoch, but never before the last update of `metadata`."""
    return max(datetime_to_millis(datetime.now().astimezone()), metadata.last_updated_ms)
