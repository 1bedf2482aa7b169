"""Names of tables and views in bodies."""

from __future__ import annotations

from pydantic import BaseModel

from trinitylake.rest.request.call import Call, checked_namespace


class Name(BaseModel):
    """A table or view."""

    namespace: list[str]
    name: str

    def identifier(self) -> tuple[str, ...]:
        """As PyIceberg writes it. Raises `RestError` 400 for a namespace that cannot be."""
        return (*checked_namespace(self.namespace), self.name)


class Rename(BaseModel):
    """The body of a rename."""

    source: Name
    destination: Name


def renamed(call: Call) -> list[tuple[str, ...]]:
    """The former and the new name of a table or view."""
    body = call.parsed(Rename)
    return [body.source.identifier(), body.destination.identifier()]
