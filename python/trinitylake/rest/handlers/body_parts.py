"""Parts that several request bodies share: names of objects, and limits on updates.

The number of updates is limited, because PyIceberg searches and copies all metadata of a table for each update, so the
work grows with the square of their number. Engines send only a few updates. The size of the metadata is limited,
because each request about an object reads all of its metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, Field

from trinitylake.rest.errors import too_large
from trinitylake.rest.request.call import Call, checked_namespace

MAX_UPDATES = 1000
#: Maximum size of the metadata of a table, view or namespace in a request.
MAX_OBJECT_SIZE_BYTES = 32 << 20

Update = TypeVar("Update")
#: Updates of one table or view, in the order of application.
Updates: TypeAlias = Annotated[list[Update], Field(max_length=MAX_UPDATES)]


class Name(BaseModel):
    """Identifier of a table or view."""

    namespace: list[str]
    name: str

    def identifier(self) -> tuple[str, ...]:
        """The identifier as PyIceberg writes it. Raises `RestError` 400 for an invalid namespace."""
        return (*checked_namespace(self.namespace), self.name)


class CreatesObject(BaseModel):
    """Body of a request that creates a table or view in the namespace of the path."""

    name: str


class Rename(BaseModel):
    source: Name
    destination: Name


def name_in(body: type[CreatesObject]) -> Callable[[Call], list[tuple[str, ...]]]:
    """A function that returns the full name of the table or view that a request creates, as a list."""
    return lambda call: [(*call.namespace(), call.parsed(body).name)]


def renamed(call: Call) -> list[tuple[str, ...]]:
    """The former and the new name of a table or view."""
    return [call.parsed(Rename).source.identifier(), new_name(call)]


def new_name(call: Call) -> tuple[str, ...]:
    """The identifier that a rename asks for.

    Spark sends `lake.db.b` in `ALTER TABLE … RENAME TO lake.db.b` as a name in the namespace `lake.db`.
    """
    identifier = call.parsed(Rename).destination.identifier()
    return identifier[1:] if len(identifier) > 2 and identifier[0] == call.sql_catalog else identifier


def check_growth(what: str, present_size_bytes: int, sent_size_bytes: int) -> None:
    """Raise `RestError` 413 if an update could make the metadata of an object too large."""
    if present_size_bytes + sent_size_bytes > MAX_OBJECT_SIZE_BYTES:
        raise too_large(
            f"the metadata of {what} has {present_size_bytes} bytes, and the limit is {MAX_OBJECT_SIZE_BYTES}: remove "
            "snapshots, schemas or properties first"
        )
