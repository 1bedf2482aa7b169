"""Namespaces and qualified names, for Iceberg's clients.

PyIceberg writes `"a.b.t"` or `("a", "b", "t")`; the lakehouse has the namespace `"a.b"` and the name `"t"`.

The lakehouse allows the namespace `a.b` without `a`, but for Iceberg's clients the parents of a namespace exist. In
this case `a` is *implicit*: it has no properties, and it becomes an object of the lakehouse when something is created
in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.typedef import Identifier

from trinitylake import _core
from trinitylake.definitions import new_namespace_def, parse_namespace_def, serialize

if TYPE_CHECKING:
    from trinitylake.lakehouse.transaction import Transaction

    State = _core.Version | _core.Transaction


def object_name(identifier: str | Identifier, missing: type[Exception] = NoSuchNamespaceError) -> tuple[str, str]:
    """Namespace and name of a table or view. Raises `missing` for an identifier without a namespace."""
    parts = Catalog.identifier_to_tuple(identifier)
    try:
        namespace = Catalog.namespace_to_string(parts[:-1])
    except ValueError as error:
        raise missing(f"{'.'.join(parts)!r} has no namespace: expected namespace.name") from error
    return namespace, parts[-1]


def namespace_name(identifier: str | Identifier) -> str:
    """The full name of a namespace. Raises `NoSuchNamespaceError` for an empty name."""
    return Catalog.namespace_to_string(identifier, NoSuchNamespaceError)


def namespace_tuple(namespace: str) -> Identifier:
    """Identifier of a namespace; the inverse of `namespace_name`."""
    return tuple(namespace.split("."))


def object_tuple(namespace: str, name: str) -> Identifier:
    """Identifier of a table or view; the inverse of `object_name`."""
    return (*namespace_tuple(namespace), name)


def namespace_exists(state: State, namespace: str) -> bool:
    """Whether the namespace, or a nested one, exists."""
    return state.exists("namespace", namespace) or state.list("namespace", namespace, 1).num_rows > 0


def require_namespace(state: State, namespace: str) -> None:
    """Raise `NoSuchNamespaceError` unless the namespace exists."""
    if not namespace_exists(state, namespace):
        raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")


def materialize_namespace(transaction: Transaction, namespace: str) -> None:
    """Create a namespace as an object if it is implicit. Raises `NoSuchNamespaceError` if it does not exist."""
    core = transaction._state()
    if not core.exists("namespace", namespace):
        require_namespace(core, namespace)
        core.create("namespace", namespace, "", serialize(new_namespace_def()))


def namespace_properties(state: State, namespace: str) -> dict[str, str]:
    """The properties of a namespace. Raises `NoSuchNamespaceError`."""
    definition = state.read("namespace", namespace)
    if definition is not None:
        return dict(parse_namespace_def(definition).properties)
    if namespace_exists(state, namespace):
        return {}
    # PyIceberg's behaviour tests expect exactly this message.
    raise NoSuchNamespaceError(f"Namespace {namespace} does not exists")


def child_namespaces(state: State, parent: str | None) -> list[Identifier]:
    """The namespaces directly below `parent`, or at the top level, sorted. Raises `NoSuchNamespaceError`."""
    names: list[str] = state.list("namespace", parent).column(0).to_pylist()
    if parent is not None and not names:
        require_namespace(state, parent)
    depth = 1 if parent is None else len(namespace_tuple(parent)) + 1
    return list(dict.fromkeys(namespace_tuple(name)[:depth] for name in names))
