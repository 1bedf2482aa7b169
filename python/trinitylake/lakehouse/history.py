"""The version log, and the difference between two versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from trinitylake.base.markup import Markup, element, framed, heading, pairs, shown, table, utc_text
from trinitylake.base.qualified_names import full_name
from trinitylake.base.timestamps import time_of
from trinitylake.errors import VersionExpired
from trinitylake.printable import printable

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake._core import VersionInfo


class _Entry(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def transactions(self) -> Sequence[CommittedTransaction]: ...


Entry = TypeVar("Entry", bound=_Entry)


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One of the transactions in a version (system key `committed_txns`, format §4).

    Attributes:
        message, author: message and author that the writer of the transaction gave.
        summary: the changes in one line, written by the library, such as "append +3,000 rows shop.orders"; "" for
            transactions of older releases.
    """

    id: str
    isolation: str
    message: str
    author: str
    began_at_version: int
    properties: dict[str, str] = field(repr=False)
    summary: str = ""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One version of the lakehouse.

    Attributes:
        created_at: time of the commit in UTC. It never decreases from one version to the next.
        rollback_from: if the version is a rollback, the version that was the latest before it; otherwise None.
        transactions: the transactions in commit order. Concurrent writers can share a version; version 0 has none.
        problem: what is wrong with the root of the version, or "". With a problem `transactions` is empty, and
            `created_at` is the beginning of 1970.
    """

    version: int
    created_at: datetime
    rollback_from: int | None
    transactions: tuple[CommittedTransaction, ...]
    problem: str = ""

    @property
    def message(self) -> str:
        """The messages of the transactions, one per line."""
        return "\n".join(transaction.message for transaction in self.transactions if transaction.message)

    @property
    def summary(self) -> str:
        """The summaries of the transactions that have one, one per line."""
        return "\n".join(transaction.summary for transaction in self.transactions if transaction.summary)

    @property
    def author(self) -> str:
        """The authors of the transactions, each once, joined with a comma."""
        return ", ".join(dict.fromkeys(transaction.author for transaction in self.transactions if transaction.author))

    def __str__(self) -> str:
        """One line of text: number, time, author, message and summary, without empty parts."""
        if self.problem:
            return printable(f"{self.version}  {self.problem}")
        said = ": ".join("; ".join(one.splitlines()) for one in (self.message, self.summary) if one)
        parts = [str(self.version), f"{self.created_at:%Y-%m-%d %H:%M:%S}Z", self.author, said]
        return printable("  ".join(part for part in parts if part))


class LogFilter(NamedTuple):
    """Condition on entries of the log.

    Attributes:
        after, before: exclusive bounds of the version numbers; `before` is None for no bound.
        author: a substring of the author of a transaction, ignoring case.
        grep: a substring of the message or summary of the same transaction, ignoring case.
    """

    after: int
    before: int | None
    author: str
    grep: str

    def select(self, newest_first: Iterable[Entry]) -> Iterator[Entry]:
        """The entries that meet the condition."""
        for entry in newest_first:
            if entry.version <= self.after:
                return
            if (self.before is None or entry.version < self.before) and self._matches(entry.transactions):
                yield entry

    def _matches(self, transactions: Iterable[CommittedTransaction]) -> bool:
        return not (self.author or self.grep) or any(
            self.author.lower() in one.author.lower() and self.grep.lower() in f"{one.message}\n{one.summary}".lower()
            for one in transactions
        )


def log_entry(info: VersionInfo) -> LogEntry:
    """The `LogEntry` with the core's information about a version."""
    return LogEntry(
        version=info.version,
        created_at=time_of(info.created_at_millis),
        rollback_from=info.rollback_from,
        transactions=tuple(
            CommittedTransaction(**{field.name: getattr(one, field.name) for field in fields(CommittedTransaction)})
            for one in info.transactions
        ),
        problem=info.problem or "",
    )


#: Maximum number of entries of the log that are read and held at a time.
PAGE = 256
#: Maximum number of changes of a diff that a notebook shows.
DIFF_SHOWN = 200
#: Maximum number of entries of the whole log that a notebook shows.
SHOWN = 20


class VersionLog(Sequence[LogEntry]):
    """The whole log at the time of the call, newest first. Entries are read when they are accessed.

    One page of entries is in memory at a time. At the first entry that has expired in the meantime, an iteration ends,
    and access by position raises `VersionExpired`.
    """

    def __init__(self, core: _core.Lakehouse, before: int | None) -> None:
        self._core = core
        self._lost: list[LogEntry] = []  # placeholders for versions with missing roots
        entries = [log_entry(info) for info in core.log(PAGE + 1, before)]
        if len(entries) > 1 and entries[0].version > entries[1].version + 1:
            self._lost.append(entries.pop(0))
        self._newest = entries[0].version if entries else -1
        self._count = self._newest + 1 - core.oldest() if entries else 0
        self._page = 0, entries[:PAGE]

    def __len__(self) -> int:
        return len(self._lost) + self._count

    @overload
    def __getitem__(self, position: int) -> LogEntry: ...
    @overload
    def __getitem__(self, position: slice) -> list[LogEntry]: ...
    def __getitem__(self, position: int | slice) -> LogEntry | list[LogEntry]:
        if isinstance(position, slice):
            return [self[one] for one in range(*position.indices(len(self)))]
        at = position + len(self) if position < 0 else position
        if not 0 <= at < len(self):
            raise IndexError(f"the log has {len(self)} entries")
        if at < len(self._lost):
            return self._lost[at]
        number, place = divmod(at - len(self._lost), PAGE)
        page = self._read(number)
        if place >= len(page):
            raise VersionExpired(f"version {self._newest + len(self._lost) - at} has expired since the log was opened")
        return page[place]

    def __iter__(self) -> Iterator[LogEntry]:
        yield from self._lost
        for number in range(-(-self._count // PAGE)):
            yield from self._read(number)

    def _read(self, number: int) -> list[LogEntry]:
        held, page = self._page
        if held != number:
            newest = self._newest - number * PAGE
            wanted = min(PAGE, self._count - number * PAGE)
            page = [log_entry(info) for info in self._core.log(wanted, newest + 1)]
            self._page = number, page
        return page

    @shown
    def _repr_html_(self) -> str:
        newest = self[:SHOWN]
        title = heading("log", "", f"the newest {len(newest):,} of {len(self):,} versions")
        return framed(title, log_table(newest, tags_by_version(self._core)))

    def __repr__(self) -> str:
        return f"<VersionLog of {len(self)} entries>"


class Log(list[LogEntry]):
    """Entries of the log, newest first, from `lake.log(20)`: a list that notebooks show as a table."""

    def __init__(self, entries: Iterable[LogEntry], core: _core.Lakehouse | None = None) -> None:
        super().__init__(entries)
        self._core = core

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    @shown
    def _repr_html_(self) -> str:
        return framed(log_table(self, {} if self._core is None else tags_by_version(self._core)))

    def __reduce__(self) -> tuple[type[Log], tuple[list[LogEntry]]]:
        return Log, (list(self),)


def tagged_versions(version: _core.Version) -> dict[str, int]:
    """The tags that exist in a version, sorted, with the numbers of the tagged versions."""
    from trinitylake import _core
    from trinitylake.definitions import parse_lakehouse_def

    paths = parse_lakehouse_def(version.definition).exported_snapshots
    numbers = {tag: _core.root_version(path) for tag, path in sorted(paths.items())}
    return {tag: number for tag, number in numbers.items() if number is not None}


def tags_by_version(core: _core.Lakehouse) -> dict[int, list[str]]:
    """The names of tags, by the number of the tagged version. Sends one request."""
    tags: dict[int, list[str]] = {}
    for name, number in tagged_versions(core.latest()).items():
        tags.setdefault(number, []).append(name)
    return tags


def log_table(entries: Iterable[LogEntry], tags: Mapping[int, Sequence[str]]) -> Markup:
    """Versions as an HTML table."""

    def row(entry: LogEntry) -> tuple[object, ...]:
        target = rollback_target(entry)
        notes = [*tags.get(entry.version, ()), *([f"rollback to {target}"] if target is not None else [])]
        what = element("span", entry.problem, class_="problem") if entry.problem else entry.message
        return entry.version, utc_text(entry.created_at), entry.author, what, entry.summary, ", ".join(notes)

    return table(("version", "when", "author", "message", "what it did", "notes"), map(row, entries), numbers={0})


def rollback_target(entry: LogEntry) -> int | None:
    """The version whose state a rollback restored; None if `entry` is no rollback of the whole lakehouse."""
    for transaction in entry.transactions:
        if (target := transaction.properties.get("trinitylake.rollback-target", "")).isdecimal():
            return int(target)
    return None


class Expired(list[int]):
    """Numbers of the versions that `lake.maintenance.expire()` deleted, or would delete in a dry run, ascending.

    Attributes:
        size_bytes: total size of the roots of these versions. `vacuum` deletes the other files that only they reached.
        oldest: the oldest version that is kept, apart from tagged versions.
        kept_size_bytes: total size of the kept roots; 0 if nothing expired.
    """

    def __init__(self, versions: Iterable[int], size_bytes: int, oldest: int, kept_size_bytes: int) -> None:
        super().__init__(versions)
        self.size_bytes = size_bytes
        self.oldest = oldest
        self.kept_size_bytes = kept_size_bytes


class Change(NamedTuple):
    """An object that differs between two versions. `kind` is "namespace", "table" or "view"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Diff:
    """Differences between version `before` and version `after`: each list sorted by kind and name.

    Truthy if anything differs. Iterates over `(sign, change)` with the signs "+", "-" and "~".
    """

    before: int
    after: int
    added: list[Change]
    removed: list[Change]
    changed: list[Change]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __iter__(self) -> Iterator[tuple[str, Change]]:
        for sign, changes in (("+", self.added), ("-", self.removed), ("~", self.changed)):
            for change in changes:
                yield sign, change

    def __str__(self) -> str:
        return "\n".join(f"{sign} {change}" for sign, change in self)

    @shown
    def _repr_html_(self) -> str:
        counts = f"{len(self.added):,} added, {len(self.removed):,} removed, {len(self.changed):,} changed"
        return framed(heading("diff", f"{self.before} → {self.after}", counts), _diff_table(self))


def _diff_table(diff: Diff) -> Markup:
    words = {"+": "added", "-": "removed", "~": "changed"}
    rows = ((words[sign], change.kind, change.name) for sign, change in islice(diff, DIFF_SHOWN))
    return table(("change", "kind", "name"), rows)


def diff_of(before: int, after: int, rows: Iterable[dict[str, Any]]) -> Diff:
    """Make a `Diff` of the core's rows, which have the keys kind, namespace, name, before and after."""
    result = Diff(before, after, [], [], [])
    for row in rows:
        change = Change(row["kind"], full_name(row["namespace"], row["name"]))
        if row["before"] is None:
            result.added.append(change)
        elif row["after"] is None:
            result.removed.append(change)
        else:
            result.changed.append(change)
    for changes in (result.added, result.removed, result.changed):
        changes.sort()
    return result


@dataclass(frozen=True, slots=True)
class TransactionChanges:
    """Changes of one transaction: an entry of `lake.changes()`.

    `position` is the transaction's position among the transactions of the version, from 0. If the version is a
    rollback, `rollback_from` is the version that was the latest before it, and `diff` has the changes of the rollback.
    """

    version: int
    position: int
    created_at: datetime
    rollback_from: int | None
    transaction: CommittedTransaction
    diff: Diff

    @shown
    def _repr_html_(self) -> str:
        one = self.transaction
        facts = pairs([("when", utc_text(self.created_at)), ("author", one.author), ("message", one.message)])
        return framed(heading("changes", f"of version {self.version}"), facts, _diff_table(self.diff))


class Changes(Iterator[TransactionChanges]):
    """Iterator over the changes of transactions, from `lake.changes()`. Notebooks show the first ones as a table.

    Args:
        begin: returns a new iterator over all changes.
    """

    def __init__(self, begin: Callable[[], Iterator[TransactionChanges]]) -> None:
        self._begin = begin
        self._rest = begin()

    def __next__(self) -> TransactionChanges:
        return next(self._rest)

    @shown
    def _repr_html_(self) -> str:
        rows = (
            (one.version, utc_text(one.created_at), one.transaction.author, one.transaction.message, str(one.diff))
            for one in islice(self._begin(), SHOWN)
        )
        headers = ("version", "when", "author", "message", "changes")
        return framed(heading("changes", "", f"at most {SHOWN} transactions"), table(headers, rows, numbers={0}))


def changes_of(info: VersionInfo, rows: Iterable[dict[str, Any]]) -> list[TransactionChanges]:
    """Group the core's rows by transaction. Their keys are transaction, kind, namespace, name, before and after."""
    entry = log_entry(info)
    by_transaction: list[list[dict[str, Any]]] = [[] for _ in entry.transactions]
    for row in rows:
        if row["transaction"] is not None:
            by_transaction[row["transaction"]].append(row)
    return [
        TransactionChanges(
            version=entry.version,
            position=position,
            created_at=entry.created_at,
            rollback_from=entry.rollback_from,
            transaction=transaction,
            diff=diff_of(entry.version - 1, entry.version, by_transaction[position]),
        )
        for position, transaction in enumerate(entry.transactions)
    ]
