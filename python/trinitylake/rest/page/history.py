"""The log, and the difference between two versions, restricted to what a principal can see.

A reader of `*` sees all. Other principals see the transactions that changed an object that they can read. They see the
commit info of a transaction only if they can read all objects that it changed, because the commit info may name them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.timestamps import millis_of
from trinitylake.errors import VersionExpired, VersionNotFound
from trinitylake.lakehouse.history import CommittedTransaction, LogEntry, log_entry, rollback_target, tags_by_version
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.page.answers import (
    answer,
    has_workers,
    reads_everything,
    require_something,
    visible_changes,
    whole_number,
    work,
)
from trinitylake.rest.request.call import Call
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY
from trinitylake.rest.workers.page_jobs import DifferenceJob

#: Limits of one request for the log: versions in the response, versions read, and duration.
MAX_SHOWN, MAX_LOOKED_AT, SECONDS = 100, 1000, 3.0
#: Maximum number of changed objects in the response, per transaction.
MAX_NAMED = 20
#: Maximum number of rows of a difference in one response, and of rows that are read at once.
MAX_DIFFERENCES, MAX_COMPARED = 5000, 20_000

_OPERATION = "trinitylake.operation"
#: Operations whose changes are found by comparing trees, which may take long.
_COMPARES_TREES = frozenset({"register", "rollback", "export", "repair"})


def log(call: Call) -> Response:
    """Entries of the log before a version, newest first.

    `search` selects entries that contain this text, `author` transactions of this author or principal, and `object`
    transactions that changed this object or an object below it.

    `next` is the value of `before` for the next page, null at the end. A page that is not the last may be short or
    empty.
    """
    require_something(call)
    lake = call.service.lake
    before = whole_number(call, "before", (1 << 62), 1 << 62)
    size = max(whole_number(call, "size", 50, MAX_SHOWN), 1)
    wanted = call.query.get("search", "").casefold()
    # The name of a tag may describe objects that the principal cannot see.
    names = tags_by_version(lake._core) if reads_everything(call.principal) else {}
    shown_entries: list[dict[str, Any]] = []
    following: int | None = None
    deadline = time.monotonic() + SECONDS
    with call.service.long_requests.lease(call.principal.name):
        for count, entry in enumerate(_entries(call, before, size)):
            if len(shown_entries) == size or count == MAX_LOOKED_AT or (count and time.monotonic() > deadline):
                following = entry.version + 1
                break
            shown = _visible(call, entry)
            if shown is not None:
                shown["tags"] = names.get(entry.version, [])
                if _matches(shown, wanted, call.query.get("author", ""), call.query.get("object", "")):
                    for one in shown["transactions"]:
                        one["changes"] = one["changes"] and one["changes"][:MAX_NAMED]
                    shown_entries.append(shown)
    return answer({"entries": shown_entries, "next": following, "oldest-version": lake._core.oldest()})


def diff(call: Call) -> Response:
    """Objects that differ between two versions, from position `start` on.

    `next` is the position of the next page, null at the end. Positions count visible objects only.
    """
    require_something(call)
    newest = 1 << 62
    if "to" not in call.query:
        raise bad_request("the versions `from` and `to` are needed")
    after = whole_number(call, "to", 0, newest)
    before = whole_number(call, "from", max(after - 1, 0), newest)
    start = whole_number(call, "start", 0, newest)
    with call.service.long_requests.lease(call.principal.name):
        if reads_everything(call.principal):
            rows, n_rows = _difference(call, before, after, start, MAX_DIFFERENCES, by_transaction=False)
            changes = visible_changes(call.principal, rows)
        else:
            seen = _seen_differences(call, before, after)
            changes, n_rows = seen[start : start + MAX_DIFFERENCES], len(seen)
    end = start + len(changes)
    return answer({"from": before, "to": after, "changes": changes, "next": end if end < n_rows else None})


def _seen_differences(call: Call, before: int, after: int) -> list[dict[str, Any]]:
    """All visible rows of a difference, for a principal that is not a reader of `*`."""
    seen: list[dict[str, Any]] = []
    start, n_rows = 0, 1
    while start < n_rows and call.is_wanted():
        rows, n_rows = _difference(call, before, after, start, MAX_COMPARED, by_transaction=False)
        seen += visible_changes(call.principal, rows)
        start += MAX_COMPARED
    return seen


def _difference(
    call: Call, before: int, after: int, start: int, limit: int, *, by_transaction: bool
) -> tuple[list[dict[str, Any]], int]:
    """Some rows of a difference, and the total number of rows. A worker computes the difference, which may be large."""
    lake = call.service.lake
    job = DifferenceJob(StorageForTasks(lake._storage), after, before, start, limit, by_transaction)
    document = work(call, job) if has_workers(call) else job.document(lake._core)
    return document["rows"], document["n-rows"]


def _entries(call: Call, before: int, size: int) -> Iterator[LogEntry]:
    core = call.service.lake._core
    newest = core.latest().number
    before = min(before, newest + 1)
    while before > 0:
        infos = core.log(size + 1, before)
        if not infos:
            return
        yield from map(log_entry, infos)
        before = infos[-1].version


def _visible(call: Call, entry: LogEntry) -> dict[str, Any] | None:
    """The visible part of an entry of the log; None if nothing is visible."""
    everything = reads_everything(call.principal)
    rows = _changes(call, entry, everything)
    transactions = []
    for position, transaction in enumerate(entry.transactions):
        mine = None if rows is None else [row for row in rows if row["transaction"] == position]
        changes = None if mine is None else visible_changes(call.principal, mine)
        if everything or changes:
            is_whole = everything or (mine is not None and changes is not None and len(mine) == len(changes))
            transactions.append(_transaction(transaction, changes, is_whole))
    if not everything and not transactions:
        return None
    return {
        "version": entry.version,
        "created-at-millis": millis_of(entry.created_at),
        "rollback-from": entry.rollback_from,
        "rollback-to": rollback_target(entry),
        "problem": entry.problem if everything else "",
        "transactions": transactions,
    }


def _changes(call: Call, entry: LogEntry, everything: bool) -> list[dict[str, Any]] | None:
    """The changes of a version, each with the position of its transaction; None if unknown or too expensive."""
    if entry.problem or not entry.transactions:
        return None
    compares = any(one.properties.get(_OPERATION) in _COMPARES_TREES for one in entry.transactions)
    if everything and compares:
        return None
    core = call.service.lake._core
    try:
        if not compares:
            rows: list[dict[str, Any]] = (
                core.version(entry.version).changes(core.version(entry.version - 1)).to_pylist()
            )
            return rows
        rows, n_rows = _difference(call, entry.version - 1, entry.version, 0, MAX_COMPARED, by_transaction=True)
        return rows if n_rows <= MAX_COMPARED else None
    except (VersionExpired, VersionNotFound):  # the previous version has expired
        return None
    except RestError as error:
        if error.code in (400, 404):
            return None
        raise


def _transaction(
    transaction: CommittedTransaction, changes: list[dict[str, Any]] | None, is_whole: bool
) -> dict[str, Any]:
    properties = transaction.properties
    document: dict[str, Any] = {
        "is-whole": is_whole,
        "operation": properties.get(_OPERATION, ""),
        "changes": changes,
        "n-changes": None if changes is None else len(changes),
    }
    if is_whole:
        document |= {
            "id": transaction.id,
            "message": transaction.message,
            "summary": transaction.summary,
            "author": transaction.author,
            "isolation": transaction.isolation,
            "began-at-version": transaction.began_at_version,
            "principal": properties.get(OWNER_PROPERTY, ""),
            "properties": properties,
        }
    return document


def _matches(shown: dict[str, Any], text: str, author: str, name: str) -> bool:
    """Whether a log entry contains `text`, and one transaction has the author and changed `name` or an object below it.

    Empty arguments match everything. `shown` is the visible part of the entry.
    """
    if text and text not in _text_of(shown):
        return False
    return (not author and not name) or any(
        (not author or author in (one.get("author"), one.get("principal")))
        and (not name or any(f"{'.'.join(change['name'])}.".startswith(f"{name}.") for change in one["changes"] or ()))
        for one in shown["transactions"]
    )


def _text_of(shown: dict[str, Any]) -> str:
    texts = [str(shown["version"]), *shown["tags"]]
    for one in shown["transactions"]:
        texts += [
            one.get("id", ""),
            one.get("message", ""),
            one.get("summary", ""),
            one.get("author", ""),
            one.get("principal", ""),
        ]
        texts += [".".join(change["name"]) for change in one["changes"] or ()]
    return "\n".join(texts).casefold()
