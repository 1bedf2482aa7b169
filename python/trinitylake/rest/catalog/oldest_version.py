"""Creation time of the oldest retained version, by the clock of the store. All expired versions are older.

`created_at` in the log cannot be used: if the clock of one host is days ahead, all later versions look younger than
they are.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from trinitylake import core
from trinitylake.errors import CommitStateUnknown

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse

#: A store may truncate the times of files to seconds.
_SECOND_MILLIS = 1000


class OldestVersion:
    """The oldest version of one lakehouse. Thread-safe."""

    def __init__(self, lake: Lakehouse) -> None:
        self._lake = lake
        self._dated: tuple[int, int] | None = None
        self._lock = threading.Lock()

    def written_at_millis(self) -> int | None:
        """Latest possible creation time of the oldest version, in ms since the epoch; None if no version has expired.

        Costs one listing, and one more if versions have expired since the last call. Raises `CommitStateUnknown` if
        the store has no time for the file.
        """
        number = self._lake._core.oldest()
        if number == 0:
            return None
        with self._lock:
            if self._dated is not None and self._dated[0] == number:
                return self._dated[1]
        name = core.root_path(number).partition(".")[0]
        dates = [modified for path, _, modified in self._lake._storage.list(name) if core.root_version(path) == number]
        if not dates and self._lake._core.oldest() != number:  # it expired in the meantime
            return self.written_at_millis()
        if not dates or not min(dates):
            raise CommitStateUnknown(
                f"the store has no modification time for version {number}, so it is unknown whether this request was "
                "committed before: check whether its change exists, and send it with a new key if not"
            )
        date = max(dates)
        if date % _SECOND_MILLIS == 0:
            date += _SECOND_MILLIS - 1
        with self._lock:
            self._dated = number, date
        return date
