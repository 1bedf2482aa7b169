"""Pickling of PyIceberg's own `FileIO` classes, whose properties may be credentials."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.io import FileIO

from trinitylake.base.pickling import PickledOption, pickled_options, unpickled_options
from trinitylake.iceberg_storage.file_io import LakehouseFileIO


@dataclass(frozen=True)
class PickledIO:
    """Pickled form of file access outside of a lakehouse."""

    kind: type[FileIO]
    properties: dict[str, PickledOption]


def pickled(io: FileIO) -> FileIO | PickledIO:
    """The pickled form. Raises `InvalidArgument` for a secret that must not be in a pickle (`base/pickling.py`)."""
    if isinstance(io, LakehouseFileIO):
        return io
    return PickledIO(type(io), pickled_options({name: str(value) for name, value in io.properties.items()}))


def unpickled(io: FileIO | PickledIO) -> FileIO:
    return io.kind(unpickled_options(io.properties)) if isinstance(io, PickledIO) else io
