"""The internal handle of an open lakehouse: the core, transactions, and statements in their own transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from trinitylake import _core
from trinitylake.base.arguments import checked_as, text_mapping
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.errors import CommitConflict, InvalidArgument, TransactionExpired, TrinityLakeError
from trinitylake.lakehouse.settings import Isolation, check_isolation, default_isolation
from trinitylake.lakehouse.transaction import ATTEMPT, Transaction, warn_in_block

if TYPE_CHECKING:
    from trinitylake.definitions import LakehouseDef
    from trinitylake.tables.append_batch import Batch
    from trinitylake.tables.autocommit_table import LatestVersion
    from trinitylake.tables.transaction_table import TransactionTable

Result = TypeVar("Result")

#: Maximum number of attempts of a statement before the caller gets the conflict.
STATEMENT_MAX_ATTEMPTS = 10


def retry_conflicts(attempt: Callable[[], Result], attempts: int = STATEMENT_MAX_ATTEMPTS) -> Result:
    """Run `attempt`, and again (at most `attempts` times) after a `CommitConflict` or `TransactionExpired`.

    There is no pause between attempts: the core waits between its attempts to create a root, and a conflict means that
    the objects have changed, so waiting would not help. Raises the last of these errors.
    """
    for _ in range(attempts - 1):
        with suppress(CommitConflict, TransactionExpired):
            return attempt()
    return attempt()


class _OutOfDate(Exception):
    """A statement failed on a version that is no longer the latest, so it has to run again."""


class Handle:
    """The lakehouse behind a `Lakehouse` and its groups of methods. Safe to share between threads.

    Attributes:
        core: the handle of the core.
        cache_size_bytes: memory for decoded tree nodes; None for the default.
    """

    def __init__(self, core: _core.Lakehouse, cache_size_bytes: int | None = None) -> None:
        self.core = core
        self.cache_size_bytes = cache_size_bytes
        self._isolation_of: tuple[bytes, Isolation] = (b"", "snapshot")

    @property
    def storage(self) -> _core.Storage:
        """The files of the lakehouse."""
        return self.core.storage

    @property
    def definition(self) -> LakehouseDef:
        """The latest `LakehouseDef` (format §6)."""
        from trinitylake.definitions import parse_lakehouse_def

        return parse_lakehouse_def(self.core.latest().definition)

    def reopen(self, storage: _core.Storage) -> None:
        """Open the lakehouse again, after its roots were repaired or its former locations changed."""
        self.core = _core.Lakehouse.open(storage, self.cache_size_bytes)

    @checked_as(properties=text_mapping)
    def begin(
        self,
        *,
        isolation: Isolation | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
        base: _core.Version | None = None,
        restart: bool = False,
    ) -> Transaction:
        """Begin a transaction on `base`, by default the latest version; otherwise as `Lakehouse.begin`."""
        if restart and id is None:
            raise InvalidArgument("restart=True needs the id of the transaction that is begun again")
        if restart:
            properties = {**(properties or {}), ATTEMPT: uuid.uuid4().hex}
        if base is None:
            base = self.core.latest()
        return Transaction(
            self.core,
            self.core.begin(
                isolation=self._default_isolation(base) if isolation is None else check_isolation(isolation),
                id=id,
                message=message,
                author=author,
                properties=properties,
                base=base,
                restart=restart,
            ),
            commit_append=self._commit_append,
        )

    def begin_entry(self, note: CommitInfo) -> _core.Transaction:
        """Begin a transaction that contributes only its log entry: another transaction commits its changes."""
        base = self.core.recently_latest() or self.core.latest()
        isolation = self._default_isolation(base)
        return self.core.begin(isolation=isolation, message=note.message, author=note.author, base=base)

    def _commit_append(self, table: TransactionTable, batch: Batch, commit: Callable[[], int]) -> int | None:
        """Commit the append of a transaction together with concurrent appends (`AutocommitTable._commit_batch`)."""
        from trinitylake.definitions import serialize
        from trinitylake.tables.autocommit_table import AutocommitTable

        latest = cast("LatestVersion", _LatestForAppends(self))
        name = table.namespace, table._own_name
        return AutocommitTable(latest, *name, serialize(table._definition))._commit_batch(batch, commit)

    def execute(
        self,
        statement: Callable[[Transaction], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: _core.Version | None = None,
    ) -> Result:
        """Run a statement in its own transaction, as `Statements.execute` does."""
        warn_in_block(self.core)
        return self.repeat(statement, note, base)

    def repeat(
        self,
        statement: Callable[[Transaction], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: _core.Version | None = None,
    ) -> Result:
        """Like `execute`, but without a warning inside the `with` block of an open transaction."""
        bases = [] if base is None else [base]

        def attempt() -> Result:
            while bases:
                with suppress(_OutOfDate):
                    return self._execute_on(bases.pop(), statement, note)
            with self.begin(message=note.message, author=note.author) as transaction:
                return statement(transaction)

        return retry_conflicts(attempt)

    def _execute_on(self, base: _core.Version, statement: Callable[[Transaction], Result], note: CommitInfo) -> Result:
        """Run the statement in a transaction on `base`.

        Raises `_OutOfDate` if the statement fails and `base` is not the latest version. A failed transaction is rolled
        back.
        """
        with self.begin(message=note.message, author=note.author, base=base) as transaction:
            try:
                return statement(transaction)
            except Exception as error:
                with suppress(TrinityLakeError):  # an error of this look-up must not hide the statement's error
                    if self.core.latest().number != base.number:
                        raise _OutOfDate from error
                raise

    def change_definition(self, change: Callable[[LakehouseDef], None], message: str, author: str) -> None:
        """Commit a change of the `LakehouseDef` (format §6); after a conflict, repeat it on the newer definition."""
        from trinitylake.definitions import parse_lakehouse_def, serialize

        def attempt() -> None:
            with self.begin(message=message, author=author) as transaction:
                definition = parse_lakehouse_def(transaction._lakehouse_definition)
                before = serialize(definition)
                change(definition)
                after = serialize(definition)
                if after != before:
                    transaction._lakehouse_definition = after
                    transaction._state().set_lakehouse_definition(after)

        retry_conflicts(attempt)

    def _default_isolation(self, version: _core.Version) -> Isolation:
        definition = version.definition
        if self._isolation_of[0] != definition:
            from trinitylake.definitions import parse_lakehouse_def

            self._isolation_of = definition, default_isolation(parse_lakehouse_def(definition))
        return self._isolation_of[1]


class _LatestForAppends:
    """The part of the protocol `autocommit_table.LatestVersion` that appends use."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._core, self._storage, self._execute = handle.core, handle.storage, handle.repeat

    def _recent_version(self) -> _core.Version | None:
        return self._core.recently_latest()

    def _begin_entry(self, note: CommitInfo) -> _core.Transaction:
        return self._handle.begin_entry(note)
