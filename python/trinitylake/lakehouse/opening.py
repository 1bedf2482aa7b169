"""Creating and opening a lakehouse."""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Literal, Unpack, overload

from trinitylake import _core
from trinitylake.base.arguments import checked
from trinitylake.base.pickling import allow_secrets
from trinitylake.errors import CorruptFile, InvalidLocation, NotALakehouse, ObjectAlreadyExists, TrinityLakeError
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.settings import FormatSettings, new_lakehouse_def

# At exit, wait up to 2 seconds until the hint file is written; with an old hint readers search longer for the latest
# version.
atexit.register(_core.finish_background_tasks, 2.0)

Durability = Literal["fsync", "none"]


@checked
def create(
    uri: str | PathLike[str],
    *,
    name: str = "",
    properties: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    pickle_secrets: bool = False,
    **settings: Unpack[FormatSettings],
) -> Lakehouse:
    """Create a lakehouse with version 0, which has no objects.

    Args:
        uri: the root: a local path (a string or `pathlib.Path`), `file://`, `memory://`, `s3://`, `gs://`, `az://` or
            `abfss://` (format §2).
        name: a name for display; nothing depends on it.
        properties: properties of the lakehouse, which are strings.
        exist_ok: open the lakehouse unchanged if it exists.
        storage_options: credentials, region, endpoint and the like, for the storage. They are never stored.
        durability: on local disk, "fsync" (the default) survives a power loss, "none" only a crash of the process.
        pickle_secrets: whether pickles of the handle, and of objects opened through it, may contain secret storage
            options. Otherwise a pickle names the environment variable with the secret; without such a variable,
            pickling fails.
        **settings: `order`, `node_file_max_size_bytes` and the others of `FormatSettings` (`lakehouse/settings.py`).

    Raises:
        ObjectAlreadyExists: the lakehouse exists, and `exist_ok` is False.
        InvalidLocation: the URI is not fully qualified, or is in an internal folder of another lakehouse.
        InvalidArgument: a setting is invalid, or the storage cannot create a file on condition that it does not exist.
    """
    from trinitylake.definitions import serialize

    definition = serialize(new_lakehouse_def(name, properties, settings))
    if pickle_secrets:
        allow_secrets(storage_options)
    storage = _core.Storage(str(uri), storage_options, durability)
    _refuse_internal_folder(storage.root, storage_options)
    try:
        return Lakehouse(_core.Lakehouse.create(storage, definition))
    except ObjectAlreadyExists:
        if not exist_ok:
            raise
        return Lakehouse(_core.Lakehouse.open(storage))


@overload
def open(
    uri: str | PathLike[str],
    *,
    version: None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> Lakehouse: ...
@overload
def open(
    uri: str | PathLike[str],
    *,
    version: int,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> LakehouseVersion: ...
@checked
def open(
    uri: str | PathLike[str],
    *,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    cache_size_bytes: int | None = None,
    pickle_secrets: bool = False,
) -> Lakehouse | LakehouseVersion:
    """Open a lakehouse, or a read-only handle on one version.

    A lakehouse with a damaged newest version can be opened: older versions can be read by their number, `log` shows
    the damaged version with its `problem`, and operations that need the newest version raise `CorruptFile`. If the
    newest root file is missing, the newest version whose root exists is read, with a `RuntimeWarning`, and writes raise
    `CorruptFile`.

    Args:
        uri: as for `create`.
        version: the number of a version, as for `lake.at(VERSION)`.
        storage_options: as for `create`.
        durability: as for `create`.
        cache_size_bytes: memory for decoded tree nodes.
        pickle_secrets: as for `create`.

    Raises:
        NotALakehouse: there is no lakehouse at `uri`.
        UnsupportedVersion: the lakehouse has a newer major version of the format.
    """
    if pickle_secrets:
        allow_secrets(storage_options)
    storage = _core.Storage(str(uri), storage_options, durability)
    try:
        lake = Lakehouse(_core.Lakehouse.open(storage, cache_size_bytes), cache_size_bytes)
    except NotALakehouse as error:
        raise NotALakehouse(f"{storage.root}: {error}") from None
    if version is None and lake._core.loss is not None:
        warnings.warn(f"{storage.root}: " + ": ".join(lake._core.loss), RuntimeWarning, stacklevel=3)
    return lake if version is None else lake.at(version)


#: Prefix of the names of a lakehouse's internal folders (format §3).
_INTERNAL_PREFIX = "_"


def _refuse_internal_folder(root: str, storage_options: Mapping[str, str] | None) -> None:
    """Raise `InvalidLocation` for a root in an internal folder of a lakehouse, such as `_txn`."""
    scheme, separator, path = root.partition("://")
    segments = path.rstrip("/").split("/")
    for position, segment in enumerate(segments):
        above = f"{scheme}{separator}{'/'.join(segments[:position])}/"
        if position > 0 and segment.startswith(_INTERNAL_PREFIX) and _is_lakehouse(above, storage_options):
            raise InvalidLocation(f"{root!r} is in an internal folder of the lakehouse {above!r}: choose another root")


def _is_lakehouse(root: str, storage_options: Mapping[str, str] | None) -> bool:
    try:
        _core.Lakehouse.open(_core.Storage(root, storage_options))
    except CorruptFile:
        return True
    except TrinityLakeError:  # no lakehouse, or no access
        return False
    return True
