"""The log table, which keeps the log entries of expired versions as rows (property `maintenance.log-table`)."""

from __future__ import annotations

from trinitylake.base.commit_info import CommitInfo
from trinitylake.base.qualified_names import split
from trinitylake.lakehouse.handle import Handle, retry_conflicts
from trinitylake.lakehouse.history import VersionLog

#: Columns of the table, which has one row for each transaction.
COLUMNS = {
    "version": "bigint",
    "created_at": "timestamptz",
    "transaction_id": "varchar",
    "author": "varchar",
    "message": "varchar",
    "summary": "varchar",
    "rollback_from": "bigint",
}


def append_log(handle: Handle, name: str, oldest_kept: int, note: CommitInfo) -> None:
    """Append the log entries of versions before `oldest_kept` to the table `name`, which is created if it is missing.

    Versions that the table already has are skipped. The transaction is serializable, so that two concurrent runs do not
    append the same entries.
    """
    oldest = handle.core.oldest()
    entries = list(VersionLog(handle.core, oldest_kept))
    message = note.message or f"keep the log of versions {oldest} to {oldest_kept - 1}"

    def attempt() -> None:
        with handle.begin(isolation="serializable", message=message, author=note.author) as transaction:
            transaction.create_namespace(split(name)[0], exist_ok=True)
            table = transaction.table(name) if transaction.exists(name) else transaction.create_table(name, COLUMNS)
            present = set(table.scan(f"version >= {oldest}", ["version"]).to_arrow()["version"].to_pylist())
            rows = [
                {
                    "version": entry.version,
                    "created_at": entry.created_at,
                    "transaction_id": one.id,
                    "author": one.author,
                    "message": one.message,
                    "summary": one.summary,
                    "rollback_from": entry.rollback_from,
                }
                for entry in reversed(entries)
                for one in entry.transactions
                if entry.version not in present
            ]
            if rows:
                table.append(rows)

    retry_conflicts(attempt)
