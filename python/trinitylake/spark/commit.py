"""Commits a write: adds the files that the tasks reported to the table, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction as IcebergTransaction
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from trinitylake.errors import CommitConflict, ObjectNotFound, TransactionClosed
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowCounts
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.spark.filters import option_filter
from trinitylake.spark.options import SAVE_ATTEMPTS, Options
from trinitylake.spark.types import arrow_schema_of, with_names_of
from trinitylake.spark.write_tasks import (
    RewrittenFiles,
    RowChange,
    WritePlan,
    WrittenFiles,
    deleted_on_error,
    files_of,
    result_of,
)
from trinitylake.tables.schema_evolution import follow

if TYPE_CHECKING:
    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.tables.table import Table

#: Property in the summary of a snapshot in a saved transaction: the key (`write_key`) of the write that created it.
WRITE_KEY = "trinitylake.write-key"


def planned(
    options: Options, rows: StructType | None = None, transaction: Transaction | None = None
) -> tuple[WritePlan, Table, bool]:
    """The plan of a batch write, the table, and whether a write with the same id was done before.

    The table is from `transaction`, from a copy of the saved transaction in the options, or from the latest version.
    With the option `merge_schema` the plan adds and widens columns. Raises `InvalidArgument` for rows that do not fit
    the table.
    """
    is_done = False
    if transaction is None:
        lake = options.open()
        if options.txn is None:
            is_done = options.id is not None and is_committed(lake, options.id)
            transaction = lake.begin()
        else:
            transaction = resumed(lake, options.txn)
    table = transaction.table(options.table_name)
    if options.txn is not None and options.id is not None:
        is_done = is_written(table, write_key(transaction.id, options.id))
    if options.merge_schema and rows is not None and table.type == "managed":
        with table._writing() as iceberg, translated(table.name), iceberg.transaction() as change:
            merge_schema(change, rows)
    plan = WritePlan.of(options, table, transaction.base_version)
    if rows is not None:
        plan.check_columns(rows)
    return plan, table, is_done


def merge_schema(change: IcebergTransaction, rows: StructType) -> None:
    """Add columns of the rows that the table lacks, and widen column types as Iceberg allows."""
    schema, version = change.table_metadata.schema(), change.table_metadata.format_version
    with change.update_schema() as update:
        follow(update, schema, with_names_of(arrow_schema(schema), arrow_schema_of(rows)), version)


def commit_write(
    plan: WritePlan,
    messages: Sequence[WriterCommitMessage | None],
    overwrite: bool = False,
    transaction: Transaction | None = None,
) -> int | None:
    """Make the files that tasks reported part of the table, in one commit or in the given transaction.

    Returns the version, or None if nothing changed, if a transaction commits the files later, or if another run of the
    job has committed them. With the option `id`, which becomes the id of the transaction, a write is done only once.

    Raises:
        CommitConflict: the table of an overwrite has changed, or a rollback has undone the commit with this id.
        TransactionClosed, ObjectNotFound: the transaction has ended.
        CommitStateUnknown: it is unknown whether the commit happened; no file was deleted.
    """
    if transaction is not None:
        with deleted_on_error(plan):
            stage(transaction, plan, messages, overwrite)
        _take_over(transaction, plan, messages)
        plan.delete_all_but(messages)
        return None
    if plan.options.txn is not None:
        save_in(plan.options.txn, plan, messages, overwrite)
        return None
    lake = plan.options.open()
    id = plan.options.id
    if id is not None and is_committed(lake, id):  # another run of the same job was faster
        plan.delete_all_but([])
        return None
    transaction = begin_on(lake, plan, id or f"spark-{plan.write_id}")
    try:
        with transaction:
            stage(transaction, plan, messages, overwrite)
    except BaseException:
        if transaction._files_are_unreachable:
            plan.delete_all_but([])
        raise
    plan.delete_all_but(messages if id is None or committed_by(lake, id, plan) else [])
    return transaction.version if transaction.version != transaction.base_version else None


def begin_on(lake: Lakehouse, plan: WritePlan, transaction_id: str, version: int | None = None) -> Transaction:
    """Begin a transaction on the version on which the write was planned, so that later commits can conflict with it."""
    core = lake._core.begin(
        id=transaction_id,
        message=plan.options.message or f"Spark write to {plan.table_name}",
        author=plan.options.author,
        properties={"engine": "spark", "write-id": plan.write_id},
        base=lake._core.version(plan.version if version is None else version),
    )
    return Transaction(lake._core, core)


def stage(
    transaction: Transaction, plan: WritePlan, messages: Sequence[WriterCommitMessage | None], overwrite: bool
) -> None:
    """Add the files that tasks reported to the table in the transaction, after removing the rows that they replace.

    Raises:
        CommitConflict: the table was dropped and created again after the write was planned.
        InvalidArgument: the filter of an overwrite cannot be read.
    """
    table = transaction.table(plan.table_name)
    files = files_of(messages)
    is_dynamic = any(message.is_dynamic for message in messages if isinstance(message, WrittenFiles))
    core = transaction._state()
    # The files were written after the version was read on which the write was planned.
    paths = [LakehouseFileIO(transaction._storage).path_of(file.file_path) for file in files]
    core.adopt(paths, since_base=core.base.number == plan.version)
    if table.id != plan.table_id:
        raise CommitConflict(
            f"table {plan.table_name} was dropped and created again while the write was running",
            keys=[f"table {plan.table_name}"],
        )
    snapshot_properties = {"engine": "spark", "write-id": plan.write_id}
    if plan.options.txn is not None and plan.options.id is not None:
        snapshot_properties[WRITE_KEY] = write_key(transaction.id, plan.options.id)
    if plan.changes is not None:
        _replace_files(table, plan, plan.changes, messages, snapshot_properties)
        return
    with table._writing() as iceberg, translated(table.name), iceberg.transaction() as change:
        assert isinstance(change, StagedTransaction)
        if plan.rows is not None:
            merge_schema(change, plan.rows)
            if change.table_metadata.schema().fields != plan.metadata.schema().fields:
                raise CommitConflict(
                    f"another writer changed the columns of table {plan.table_name} while the write was running",
                    keys=[f"table {plan.table_name}"],
                )
        if overwrite and is_dynamic and not table.partition_spec.is_unpartitioned():
            change.remove_partitions(files, snapshot_properties)
        elif overwrite:
            replaced = option_filter(plan.options.filter, plan.metadata.schema())
            with change.looking_for("overwrite", replaced):
                change.delete(replaced, snapshot_properties)
        if files:
            change.append_files(files, snapshot_properties)
            _forget_incoming(iceberg)


def _forget_incoming(iceberg: IcebergTable) -> None:
    """Forget the table's incoming files: `stage` has adopted them already, with their known age."""
    assert isinstance(iceberg.io, LakehouseFileIO)
    iceberg.io.take_incoming()


def _replace_files(
    table: Table,
    plan: WritePlan,
    changes: RowChange,
    messages: Sequence[WriterCommitMessage | None],
    snapshot_properties: dict[str, str],
) -> None:
    """Replace the files that tasks rewrote.

    Raises `CommitConflict` if another write of the transaction has changed the table in the meantime.
    """
    if table._iceberg().metadata.current_snapshot_id != changes.snapshot_id:
        raise CommitConflict(
            f"another write into the transaction changed table {table.name} while the {changes.statement} was running",
            keys=[f"table {table.name}"],
        )
    rewritten = [message for message in messages if isinstance(message, RewrittenFiles)]
    removed = [changes.files[number] for message in rewritten for number in message.removed]
    removed += [file for message in rewritten for file in message.removed_deletes]
    added = files_of(messages)
    with table._writing() as iceberg, translated(table.name), iceberg.transaction() as change:
        assert isinstance(change, StagedTransaction)
        with change.looking_for(changes.statement, changes.filter):
            change.count_rows(RowCounts(*result_of(messages)[:3]))
            if removed or added:
                change.replace_files(removed, added, snapshot_properties=snapshot_properties)
        _forget_incoming(iceberg)


def committed_by(lake: Lakehouse, transaction_id: str, plan: WritePlan) -> bool:
    """Whether the commit with this id is from this write, and not from another run of the same job."""
    version = lake.transactions.outcome(transaction_id).version
    if version is None:
        return True
    entries = lake.at(version).entry.transactions
    return any(one.id == transaction_id and one.properties.get("write-id") == plan.write_id for one in entries)


def write_key(transaction_id: str, write_id: str) -> str:
    """The key of a write in a saved transaction, which is stored in the summary of the snapshot."""
    return f"{transaction_id}/{write_id}"


def is_written(table: Table, key: str) -> bool:
    """Whether a table, in the state that a transaction sees, has a snapshot from the write with this key."""
    return any(one.summary is not None and one.summary[WRITE_KEY] == key for one in table._iceberg().snapshots())


def resumed(lake: Lakehouse, attempt: str) -> Transaction:
    """Resume a saved transaction. Raises the errors of `Lakehouse.resume`, and `TransactionClosed`."""
    try:
        transaction = lake.resume(attempt)
    except ObjectNotFound as error:
        raise ObjectNotFound(
            f"{error}; if it is open in this process, call its save(), or give the transaction itself to "
            "trinitylake.spark.write, merge, update or delete"
        ) from None
    if transaction.version is not None:
        raise TransactionClosed(f"transaction {transaction.id} was committed as version {transaction.version}")
    return transaction


def save_in(attempt: str, plan: WritePlan, messages: Sequence[WriterCommitMessage | None], overwrite: bool) -> None:
    """Add the files to the table in a saved transaction, and save it again.

    Other writes may save the same transaction concurrently: each write adds its files to the state that the other
    writes saved. A write with the option `id` is added only once.

    Raises:
        CommitConflict: other writes were faster each time, the transaction was begun again, or the rows that an
            overwrite replaces have changed.
        TransactionClosed, ObjectNotFound, TransactionExpired: the transaction has ended.
    """
    for saves_left in reversed(range(SAVE_ATTEMPTS)):
        with deleted_on_error(plan):
            transaction = resumed(plan.options.open(), attempt)
            key = None if plan.options.id is None else write_key(transaction.id, plan.options.id)
            if key is not None and is_written(transaction.table(plan.table_name), key):
                plan.delete_all_but([])
                return
            stage(transaction, plan, messages, overwrite)
            _take_over(transaction, plan, messages)
        try:
            transaction.save()
        except CommitConflict:
            if not saves_left:
                plan.delete_all_but([])
                raise
        else:
            plan.delete_all_but(messages)
            return


def _take_over(transaction: Transaction, plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Record the files as written by the transaction, so that its rollback deletes them."""
    io = transaction.table(plan.table_name)._iceberg().io
    assert isinstance(io, LakehouseFileIO)
    io.remember_written(io.path_of(file.file_path) for file in files_of(messages))


def is_committed(lake: Lakehouse, id: str) -> bool:
    """Whether a transaction with this id was committed. Raises `CommitConflict` if a rollback has undone its commit."""
    if not lake.transactions.is_committed(id):
        return False
    outcome = lake.transactions.outcome(id)
    if outcome.status == "undone":
        raise CommitConflict(
            f"the write {id} was committed as version {outcome.version}, which a rollback has undone: to repeat the "
            "write, use another id"
        )
    return True
