"""Settings of a lakehouse: the fields of `LakehouseDef` (format §6), with their defaults.

Four settings can change at any time; the others shape keys and nodes and are fixed when the lakehouse is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, cast

from trinitylake.base.properties import change_properties
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef

Isolation = Literal["snapshot", "serializable"]
#: How writers in several processes coordinate their commits.
Coordination = Literal["none", "queue"]
ISOLATIONS: tuple[Isolation, ...] = ("snapshot", "serializable")


class Settings(TypedDict, total=False):
    """Settings that `lake.alter` can change.

    Attributes:
        maximum_version_age_millis: the age from which versions may expire; by default 7 days.
        minimum_versions_to_keep: the number of newest versions that never expire; by default 3.
        txn_ttl_millis: the age of an open transaction from which garbage collection may delete its files; by default 1
            day.
        default_isolation: isolation of transactions that choose none: "snapshot" (the default) or "serializable", where
            a commit also fails if another transaction changed data that was read.
    """

    maximum_version_age_millis: int
    minimum_versions_to_keep: int
    txn_ttl_millis: int
    default_isolation: Isolation


class FormatSettings(Settings, total=False):
    """Settings that only `create` accepts.

    Attributes:
        order: maximum number of children of a tree node; by default 128.
        node_file_max_size_bytes: the target size of a node file before compression; by default 1 MiB.
        namespace_name_max_size_bytes, table_name_max_size_bytes, view_name_max_size_bytes: maximum length of a name in
            bytes of UTF-8; by default 100. Keys are padded to these lengths (format §4).
        file_path_max_size_bytes: maximum length of a stored path in bytes; by default 200.
    """

    order: int
    node_file_max_size_bytes: int
    namespace_name_max_size_bytes: int
    table_name_max_size_bytes: int
    view_name_max_size_bytes: int
    file_path_max_size_bytes: int


DEFAULTS: FormatSettings = {
    "order": 128,
    "node_file_max_size_bytes": 1 << 20,
    "namespace_name_max_size_bytes": 100,
    "table_name_max_size_bytes": 100,
    "view_name_max_size_bytes": 100,
    "file_path_max_size_bytes": 200,
    "maximum_version_age_millis": 7 * 24 * 3600 * 1000,
    "minimum_versions_to_keep": 3,
    "txn_ttl_millis": 24 * 3600 * 1000,
    "default_isolation": "snapshot",
}


def new_lakehouse_def(name: str, properties: Mapping[str, str] | None, settings: FormatSettings) -> LakehouseDef:
    """The definition of a new lakehouse. Raises `InvalidArgument` for an unknown setting or an invalid value."""
    from trinitylake.definitions import MAJOR_VERSION, LakehouseDef

    definition = LakehouseDef(name=name, major_version=MAJOR_VERSION)
    change_properties(definition.properties, properties)
    apply_settings(definition, cast(FormatSettings, {**DEFAULTS, **settings}))
    return definition


def apply_settings(definition: LakehouseDef, settings: FormatSettings | Settings) -> None:
    """Set fields of a definition. Raises `InvalidArgument` for an unknown setting or an invalid value."""
    for name, value in settings.items():
        if name not in DEFAULTS:
            raise InvalidArgument(f"unknown setting {name!r}: expected one of {', '.join(DEFAULTS)}")
        if name == "default_isolation":
            definition.default_isolation = ISOLATIONS.index(check_isolation(value))  # type: ignore[assignment]
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            # 0 is not allowed, because a 0 in the definition file means the default.
            raise InvalidArgument(f"{name} must be a whole number of at least 1, got {value!r}")
        try:
            setattr(definition, name, value)
        except ValueError as error:
            raise InvalidArgument(f"{name} is too large: {value}") from error


def default_isolation(definition: LakehouseDef) -> Isolation:
    """The isolation of transactions that do not choose one."""
    return ISOLATIONS[definition.default_isolation]


def check_isolation(value: object) -> Isolation:
    """`value`, if it is an isolation level. Raises `InvalidArgument` if it is not."""
    for isolation in ISOLATIONS:
        if value == isolation:
            return isolation
    raise InvalidArgument(f"unknown isolation {value!r}: expected {' or '.join(map(repr, ISOLATIONS))}")
