"""How many updates a commit may have.

The library that applies them looks through all that a table has for each one, and copies it, so their work grows with
the square of their number. An engine sends a handful.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

from pydantic import Field

MAX_UPDATES = 1000

Update = TypeVar("Update")
#: The updates of one table or view, in the order in which they are applied.
Updates: TypeAlias = Annotated[list[Update], Field(max_length=MAX_UPDATES)]
