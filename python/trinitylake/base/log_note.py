"""What whoever writes says of it, for the log."""

from __future__ import annotations

from typing import NamedTuple

from trinitylake.errors import InvalidArgument


class LogNote(NamedTuple):
    """The `message` and the `author` of a statement that is a transaction of its own."""

    message: str = ""
    author: str = ""

    def refuse(self) -> None:
        """For a statement that is none. Raises `InvalidArgument` if anything is said."""
        if self.message or self.author:
            raise InvalidArgument(
                "message= and author= are for statements that are transactions of their own: "
                "in a transaction, give them to lake.transaction(message=…, author=…)"
            )


NO_NOTE = LogNote()
