"""Looking at single objects over time, and bringing them back: what a lakehouse offers beside `rollback`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from trinitylake.base.arguments import checked
from trinitylake.base.qualified_names import Identifier
from trinitylake.lakehouse.lakehouse_part import LakehousePart

if TYPE_CHECKING:
    from trinitylake.lakehouse.object_history import ObjectChange
    from trinitylake.lakehouse.restoring import Restored


class Undo(LakehousePart):
    """History of one object, and its restoration."""

    @checked
    def restore(
        self,
        identifier: Identifier,
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        to: Identifier | None = None,
        message: str = "",
        author: str = "",
    ) -> Restored:
        """Bring one object back as an earlier version has it, as one ordinary commit; all others stay as they are.

        What was dropped is there again, with its id and its history. What is still there goes back to how it was, under
        its present name if it was renamed. A namespace comes back with all namespaces, tables and views that were in
        it; what has come into it since stays.

        No data is copied: the table names the files that it named then.

        Args:
            identifier: the table, view or namespace, as it was called then.
            version: the version that has it as it should be; or
            timestamp: the moment, as for `at`; or
            snapshot: the name of a snapshot.
            to: another name. If the object is still there under its own, this makes a copy of it, with an id of its
                own. For a namespace, all that was in it comes below the new name.
            message: for the log.
            author: for the log.

        Raises:
            ObjectNotFound: the version has no such object; or the namespace where it should go is not there.
            ObjectAlreadyExists: another object has the name.
            VersionNotFound, VersionExpired: as for `at`.
            CommitConflict: others changed the same objects, again and again.
        """
        from trinitylake.lakehouse.restoring import restore

        past = self.at(version=version, timestamp=timestamp, snapshot=snapshot)
        return restore(self, past, identifier, to=to, message=message, author=author)

    @checked
    def history(
        self, identifier: Identifier, limit: int | None = 20, *, before: int | None = None
    ) -> list[ObjectChange]:
        """The versions that changed one object, newest first, as far as versions are kept.

        The object is known by its id, so the list goes on through renames, and over a drop that was undone. If nothing
        has the name now, it is that of the object that had it last. Versions in which the object stayed as it was are
        passed over, many at a time: the cost is in proportion to the changes of the object, and grows with the number
        of versions as their logarithm. In a lakehouse of so few objects that its tree is one node, each version is
        read.

        Args:
            identifier: the table, view or namespace, as it is called now.
            limit: at most so many; None for all.
            before: only versions before this one, for the next page.

        Raises `ObjectNotFound` if no version that is kept has such an object.
        """
        from itertools import islice

        from trinitylake.lakehouse.object_history import changes_of_object

        changes = changes_of_object(self.core, identifier)
        wanted = (change for change in changes if before is None or change.version < before)
        return list(islice(wanted, limit))
