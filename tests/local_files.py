"""Paths of files that a lakehouse on a local disk names by location."""

from __future__ import annotations

from pathlib import Path

SCHEME = "file://"


def local_path(location: str) -> Path:
    """Path of the file or folder at a `file://` location.

    Raises `ValueError` for every other scheme: a location such as `memory://…` is also a valid relative path, and a
    test that wrote to one wrote into the checkout.
    """
    if not location.startswith(SCHEME):
        raise ValueError(f"{location!r} is not on a local disk")
    return Path(location.removeprefix(SCHEME))
