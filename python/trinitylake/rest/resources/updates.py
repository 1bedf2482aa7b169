"""How many updates a commit may have, and how large an object may become by them.

The library that applies them looks through all that a table has for each one, and copies it, so their work grows with
the square of their number. An engine sends a handful. What an object has become is read whole for each request about
it, and takes several times its size then.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field

from trinitylake.rest.errors import RestError

MAX_UPDATES = 1000

#: Of the metadata of a table, of a view or of a namespace, in bytes.
MAX_OBJECT_SIZE_BYTES = 32 << 20

Update = TypeVar("Update")
#: The updates of one table or view, in the order in which they are applied.
Updates: TypeAlias = Annotated[list[Update], Field(max_length=MAX_UPDATES)]


def check_growth(what: str, present_size_bytes: int, sent_size_bytes: int) -> None:
    """Refuse what may make an object too large, before any of it is done. Raises `RestError` 413."""
    if present_size_bytes + sent_size_bytes > MAX_OBJECT_SIZE_BYTES:
        raise RestError(
            413,
            "RequestTooLargeException",
            f"{what} has metadata of {present_size_bytes} bytes, and may have {MAX_OBJECT_SIZE_BYTES}: remove "
            "something first",
        )
