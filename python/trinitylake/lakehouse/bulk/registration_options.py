"""The options and the result of a registration, on one machine or by an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RegistrationOptions:
    """Options of `Lakehouse.register`, under the same names."""

    message: str = ""
    author: str = ""
    replace: bool = False
    dry_run: bool = False
    file_io_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Registration:
    """The result of a registration.

    Attributes:
        version: the version with all of it; None after a dry run.
        namespaces, tables, views: the number of registered objects of each kind.
    """

    version: int | None
    namespaces: int
    tables: int
    views: int
