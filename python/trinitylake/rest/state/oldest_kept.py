"""Since when the log is whole: when the oldest version that is kept was written, by the clock of the store.

What has expired was written before, whatever the clocks of its writers said. `created_at` in the log is no measure: one
host that is ahead by days puts all versions after its own into the future.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trinitylake import core
from trinitylake.errors import CommitStateUnknown

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse

#: A store may date files by whole seconds, and cuts off the rest.
_SECOND_MILLIS = 1000


class OldestKept:
    """The oldest version of one lakehouse. Safe to share between threads."""

    def __init__(self, lake: Lakehouse) -> None:
        self._lake = lake
        self._dated: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def written_at_millis(self) -> int | None:
        """When it was written, at the latest, in milliseconds since the epoch; None if nothing has expired.

        A listing, and one more when versions have expired since. Raises `CommitStateUnknown` if the store is silent.
        """
        number = self._lake.core.oldest()
        if number == 0:
            return None
        with self._lock:
            if self._dated is not None and self._dated[0] == number:
                return self._dated[1]
        name = core.root_path(number).partition(".")[0]
        dates = [modified for path, _, modified in self._lake.storage.list(name) if core.root_version(path) == number]
        if not dates and self._lake.core.oldest() != number:  # it expired meanwhile
            return self.written_at_millis()
        if not dates or not min(dates):
            raise CommitStateUnknown(
                f"the store does not say when version {number} was written, so nobody knows whether this request was "
                "committed before: look at what it would change, and send it with a new key if that is not there"
            )
        date = max(dates)
        if date % _SECOND_MILLIS == 0:
            date += _SECOND_MILLIS - 1
        with self._lock:
            self._dated = number, date
        return date
