"""Private functions and values of PyIceberg under public names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import _ENV_CONFIG
from pyiceberg.schema import Schema
from pyiceberg.typedef import TableVersion

if TYPE_CHECKING:
    import pyarrow as pa


def check_columns_fit(schema: Schema, columns: pa.Schema, format_version: TableVersion) -> None:
    """Raises `ValueError`, with PyIceberg's table of differences, for columns that do not fit a schema."""
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    _check_pyarrow_schema_compatible(schema, columns, format_version=format_version)


def configuration_at_start(catalog_name: str) -> dict[str, Any]:
    """PyIceberg's configuration of a catalog as of the start of the process, which `load_catalog` uses."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog_name) or {})
