"""A view in one version: SQL that engines run, in one or several dialects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trinitylake.base.arguments import checked
from trinitylake.base.markup import element, framed, heading, shown, table
from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.base.qualified_names import full_name
from trinitylake.errors import ObjectNotFound

if TYPE_CHECKING:
    from trinitylake.definitions import Schema, ViewDef


class View:
    """A view and its SQL (`ViewDef`, format §6). TrinityLake stores the SQL without parsing it."""

    def __init__(self, namespace: str, name: str, definition: ViewDef) -> None:
        self._namespace = namespace
        self._name = name
        self._definition = definition

    @property
    def name(self) -> str:
        """The full name, such as `"nyc.busy"`."""
        return full_name(self._namespace, self._name)

    @property
    def namespace(self) -> str:
        """The namespace of the view."""
        return self._namespace

    @property
    def id(self) -> str:
        """Id of the view, which never changes; a view that is dropped and created again has another id."""
        return self._definition.id

    @property
    def representations(self) -> dict[str, str]:
        """The SQL by dialect, in the order of the definition."""
        return {one.dialect: one.sql for one in self._definition.representations}

    @property
    def dialect(self) -> str:
        """The dialect of the first representation."""
        return self._definition.representations[0].dialect

    @property
    def sql(self) -> str:
        """The SQL of the first representation."""
        return self._definition.representations[0].sql

    @checked
    def sql_for(self, dialect: str) -> str:
        """The SQL in one dialect, whose name is case-insensitive. Raises `ObjectNotFound` if there is none."""
        for representation in self._definition.representations:
            if representation.dialect.lower() == dialect.lower():
                return representation.sql
        raise ObjectNotFound(
            f"view {self.name} has no {dialect} representation, only {', '.join(self.representations)}"
        )

    @property
    def schema(self) -> Schema | None:
        """The columns; None if the creator of the view did not give any."""
        from trinitylake.definitions import Schema

        return Schema.from_definition(self._definition.schema) if self._definition.HasField("schema") else None

    @property
    def default_namespace(self) -> str:
        """The namespace of names in the SQL that are written without a namespace; "" if the creator gave none."""
        return self._definition.default_namespace

    @property
    def properties(self) -> dict[str, str]:
        """The properties that users gave the view."""
        given = self._definition.properties.items()
        return {name: value for name, value in given if not name.startswith(OWN_PROPERTY_PREFIX)}

    @shown
    def _repr_html_(self) -> str:
        texts = ((dialect, element("code", sql)) for dialect, sql in self.representations.items())
        return framed(heading("view", self.name), table(("dialect", "SQL"), texts))

    def __reduce__(self) -> tuple[Callable[..., View], tuple[str, str, bytes]]:
        from trinitylake.definitions import serialize

        return _from_bytes, (self._namespace, self._name, serialize(self._definition))

    def __repr__(self) -> str:
        return f"View({self.name!r}, {self.sql!r}, dialect={self.dialect!r})"


def _from_bytes(namespace: str, name: str, definition: bytes) -> View:
    from trinitylake.definitions import parse_view_def

    return View(namespace, name, parse_view_def(definition))
