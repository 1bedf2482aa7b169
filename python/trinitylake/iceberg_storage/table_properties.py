"""Rules for the properties of a managed table.

A property must not name code, a location outside of the table, or permission for engines to delete files. Values of
known properties are validated, because an engine that meets an unknown value cannot write the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyiceberg.table import TableProperties
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.utils.properties import property_as_int

from trinitylake.errors import InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata_compression import file_suffix
from trinitylake.iceberg_storage.snapshot_retention import SNAPSHOTS_KEPT

#: Properties that hold a location for files to be written.
LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)

#: Property: whether engines may delete files of a table. It is "false" for managed tables, because other versions and
#: transactions may need the files, so that only the lakehouse may delete them (format §9).
GC_ENABLED = "gc.enabled"
GC_DISABLED = "false"

#: Property with the key id of an encrypted table. The metadata of such a table (format version 3) contains keys, which
#: PyIceberg would drop.
ENCRYPTION_KEY = "encryption.key-id"

#: Property: number of earlier metadata files in the metadata log; by default `SNAPSHOTS_KEPT`.
LOGGED_FILES = TableProperties.METADATA_PREVIOUS_VERSIONS_MAX

_WAITS = ("min-wait", "max-wait", "total-timeout")
#: Allowed values of properties that engines read, as regular expressions without case.
_CHOICES = {
    **dict.fromkeys(("write.format.default", "write.delete.format.default"), "parquet|avro|orc"),
    "write.parquet.compression-codec": "zstd|gzip|snappy|lz4|lz4_raw|brotli|lzo|none|uncompressed",
    "write.avro.compression-codec": "gzip|zstd|snappy|none|null|uncompressed|deflate|zstandard|bzip2",
    "write.orc.compression-codec": "zstd|zlib|snappy|lz4|lzo|none",
    "write.delete.granularity": "file|partition",
    "write.metadata.metrics.default": r"none|counts|full|truncate\([1-9][0-9]{0,8}\)",
    "write.distribution-mode": "none|hash|range",
    **{f"write.{statement}.distribution-mode": "none|hash|range" for statement in ("delete", "update", "merge")},
    **{f"write.{statement}.mode": "copy-on-write|merge-on-read" for statement in ("delete", "update", "merge")},
    **{f"write.{statement}.isolation-level": "serializable|snapshot" for statement in ("delete", "update", "merge")},
    **dict.fromkeys(
        (
            "commit.manifest-merge.enabled",
            "write.metadata.delete-after-commit.enabled",
            "write.object-storage.enabled",
            "write.object-storage.partitioned-paths",
            "write.spark.fanout.enabled",
            "write.spark.accept-any-schema",
            "write.upsert.enabled",
            "write.wap.enabled",
        ),
        "true|false",
    ),
}
#: Maximum values of properties that are whole numbers.
_NUMBERS = {
    **dict.fromkeys(
        (
            "commit.manifest.min-count-to-merge",
            "commit.retry.num-retries",
            "commit.status-check.num-retries",
            "history.expire.min-snapshots-to-keep",
            "read.split.planning-lookback",
            "write.metadata.metrics.max-inferred-column-defaults",
            "write.parquet.dict-size-bytes",
            "write.parquet.page-row-limit",
            "write.parquet.page-size-bytes",
            "write.parquet.row-group-limit",
            "write.parquet.row-group-size-bytes",
            "write.summary.partition-limit",
            LOGGED_FILES,
        ),
        2**31 - 1,
    ),
    **dict.fromkeys(
        (
            *(f"commit.{retry}.{wait}-ms" for retry in ("retry", "status-check") for wait in _WAITS),
            "commit.manifest.target-size-bytes",
            "history.expire.max-ref-age-ms",
            "history.expire.max-snapshot-age-ms",
            "read.split.metadata-target-size",
            "read.split.open-file-cost",
            "read.split.target-size",
            "write.delete.target-file-size-bytes",
            "write.target-file-size-bytes",
        ),
        2**63 - 1,
    ),
}
_COLUMN_METRICS = "write.metadata.metrics.column."


def with_gc_disabled(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with `gc.enabled=false`."""
    return {**properties, GC_ENABLED: GC_DISABLED}


def check_properties(properties: Mapping[str, str], location: str, io: LakehouseFileIO) -> None:
    """Check the properties of a table.

    Raises:
        InvalidLocation: for a write path outside of the table.
        InvalidArgument: for a property that names code or lets engines delete files, and for a value that engines
            cannot read.
    """
    for name in filter(is_code_property, properties):
        raise InvalidArgument(f"the table property {name!r} is not allowed: it would load code from metadata")
    if properties.get(GC_ENABLED, GC_DISABLED).lower() != GC_DISABLED:
        raise gc_is_fixed()
    if ENCRYPTION_KEY in properties:
        raise encrypted()
    for name, value in properties.items():
        _check_value(name, value)
    if (mapping := properties.get(TableProperties.DEFAULT_NAME_MAPPING)) is not None:
        try:
            _check_names(parse_mapping_from_json(mapping).root)
        except ValueError as error:
            message = f"the table property {TableProperties.DEFAULT_NAME_MAPPING!r} is not a name mapping of Iceberg"
            raise InvalidArgument(message) from error
    file_suffix(properties)
    logged_files(properties)
    table_path = io.path_of(location.rstrip("/"))
    for name, value in properties.items():
        if is_location_property(name) and value:
            path = io.path_of(value.rstrip("/"))
            if path != table_path and not path.startswith(table_path + "/"):
                raise InvalidLocation(
                    f"the table property {name!r} names {value!r}, outside of the table at {location!r}"
                )


def _check_names(fields: Iterable[MappedField]) -> None:
    """Raise `ValueError` for a field of a name mapping without names, which PyIceberg accepts and cannot use."""
    for field in fields:
        if not isinstance(field.names, list):
            raise ValueError("a mapped field has no names")
        _check_names(field.fields)


def _check_value(name: str, value: str) -> None:
    """Raise `InvalidArgument` for a value that engines cannot read."""
    choices = _CHOICES.get("write.metadata.metrics.default" if name.startswith(_COLUMN_METRICS) else name)
    if choices is not None and not re.fullmatch(choices, value, re.IGNORECASE):
        expected = choices.replace("|", ", ")
    elif (most := _NUMBERS.get(name)) is not None and not is_number(value, most):
        expected = f"a whole number from 0 to {most}"
    else:
        return
    raise InvalidArgument(f"the table property {name!r} is {value[:100]!r}; expected: {expected}")


def is_number(value: str, most: int) -> bool:
    """Whether a string is a whole number from 0 to `most`."""
    return value.isascii() and value.isdecimal() and len(value) < 20 and int(value) <= most


def logged_files(properties: Mapping[str, str]) -> int:
    """Maximum number of earlier metadata files in the metadata log of a table, at least one.

    Raises `InvalidArgument` for a property that is not a whole number.
    """
    if LOGGED_FILES not in properties:
        return SNAPSHOTS_KEPT
    try:
        return max(1, property_as_int(dict(properties), LOGGED_FILES, SNAPSHOTS_KEPT) or 1)
    except ValueError as error:
        raise InvalidArgument(
            f"the table property {LOGGED_FILES!r} is a whole number, not {properties[LOGGED_FILES][:100]!r}"
        ) from error


def is_location_property(name: str) -> bool:
    """Whether a property of a table or view is a location for new files, in this or a later version of Iceberg."""
    is_path = name.startswith("write.") and name.endswith((".path", ".location"))
    return name in LOCATION_PROPERTIES or (is_path and ".column." not in name)  # a column may have any name


def is_code_property(name: str) -> bool:
    """Whether a property names a class that readers of the table load, in this or a later version of Iceberg."""
    return name.endswith(("-impl", ".impl")) and ".column." not in name


def encrypted() -> InvalidArgument:
    return InvalidArgument(
        f"the table property {ENCRYPTION_KEY!r} makes an encrypted table, whose keys would not be kept here: encrypt "
        "the storage instead"
    )


def gc_is_fixed() -> InvalidArgument:
    return InvalidArgument(
        f"the table property {GC_ENABLED!r} is always {GC_DISABLED} here: only the lakehouse deletes files, because "
        "other versions need them"
    )
