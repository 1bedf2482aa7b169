"""Properties of lakehouses, namespaces, tables and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from trinitylake.errors import InvalidArgument

#: Prefix of internal properties, which users neither set nor see.
OWN_PROPERTY_PREFIX = "trinitylake."


def change_properties(
    target: MutableMapping[str, str], properties: Mapping[str, str] | None, removed: Iterable[str] = ()
) -> None:
    """Set and remove properties in place.

    Raises `InvalidArgument` if a property is both set and removed, or if it is not a string with a string as its name.
    """
    properties = properties or {}
    removed = list(removed)
    if both := sorted(properties.keys() & set(removed)):
        raise InvalidArgument(f"properties are both set and removed: {', '.join(both)}")
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidArgument(f"properties map strings to strings, got {key!r}: {value!r}")
    target.update(properties)
    for key in removed:
        target.pop(key, None)
