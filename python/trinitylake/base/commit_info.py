"""Message and author of a commit."""

from __future__ import annotations

from typing import NamedTuple

from trinitylake.errors import InvalidArgument


class CommitInfo(NamedTuple):
    """Message and author of a statement outside of a transaction."""

    message: str = ""
    author: str = ""

    def refuse(self) -> None:
        """Raise `InvalidArgument` for a commit message or an author: single statements of a transaction cannot have
        them.
        """
        if self.message or self.author:
            raise InvalidArgument(
                "message= and author= are for statements outside of transactions: "
                "in a transaction, pass them to lake.transaction(message=…, author=…)"
            )


NO_COMMIT_INFO = CommitInfo()
