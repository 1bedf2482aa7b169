"""Conversion between identifiers of PyIceberg and names of the lakehouse.

PyIceberg writes `"a.b.t"` or `("a", "b", "t")`; the lakehouse has the namespace `"a.b"` and the name `"t"`.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.typedef import Identifier


def object_name(identifier: str | Identifier, missing: type[Exception] = NoSuchNamespaceError) -> tuple[str, str]:
    """Namespace and name of a table or view. Raises `missing` for an identifier without a namespace."""
    parts = Catalog.identifier_to_tuple(identifier)
    try:
        namespace = Catalog.namespace_to_string(parts[:-1])
    except ValueError as error:
        raise missing(f"{'.'.join(parts)!r} has no namespace: expected namespace.name") from error
    return namespace, parts[-1]


def namespace_name(identifier: str | Identifier) -> str:
    """The full name of a namespace. Raises `NoSuchNamespaceError` for an empty one."""
    return Catalog.namespace_to_string(identifier, NoSuchNamespaceError)


def namespace_tuple(namespace: str) -> Identifier:
    """Identifier of a namespace; the inverse of `namespace_name`."""
    return tuple(namespace.split("."))


def object_tuple(namespace: str, name: str) -> Identifier:
    """Identifier of a table or view; the inverse of `object_name`."""
    return (*namespace_tuple(namespace), name)
