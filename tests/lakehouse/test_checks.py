"""Checks hold for the committed version, whatever concurrent writers changed in the tables that they read."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.tables import table_locks
from waiting import in_threads

Load = Callable[[tl.Transaction], object]


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Orders of two existing customers, and products, which no check reads."""
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.customers", {"id": "int64"}).append({"id": [1, 2]})
        txn.create_table("shop.orders", {"customer": "int64"}).append({"customer": [1, 2]})
        txn.create_table("shop.products", {"id": "int64"}).append({"id": [7]})
    return lake


def customers(reader: tl.Lakehouse | tl.Transaction) -> set[int]:
    return set(reader.table("shop.customers").scan().to_arrow()["id"].to_pylist())


def orders(reader: tl.Lakehouse | tl.Transaction) -> list[int]:
    return sorted(reader.table("shop.orders").scan().to_arrow()["customer"].to_pylist())


SQL = "SELECT count(*) = 0 FROM shop.orders WHERE customer NOT IN (SELECT id FROM shop.customers)"


class Known:
    """Checks that every order has a customer. Counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, txn: tl.Transaction) -> bool:
        self.runs += 1
        return set(orders(txn)) <= customers(txn)


def ordering(shop: tl.Lakehouse, customer: int, check: str | Known, isolation: str = "snapshot") -> tl.Transaction:
    txn = shop.begin(isolation=isolation)
    txn.table("shop.orders").append({"customer": [customer]})
    txn.add_check(check)
    return txn


@pytest.mark.parametrize("check", [SQL, Known()], ids=["sql", "function"])
def test_a_check_runs_again_when_a_table_that_it_only_read_was_changed(shop: tl.Lakehouse, check: str | Known) -> None:
    txn = ordering(shop, 2, check)
    shop.table("shop.customers").delete("id = 2")
    version = shop.version
    with pytest.raises(tl.CheckFailed):
        txn.commit()
    assert (shop.version, orders(shop)) == (version, [1, 2])


def test_checks_hold_for_the_version_that_the_root_creates(shop: tl.Lakehouse) -> None:
    """Checks hold for the committed version. Another transaction commits right after the check ran, which is the latest
    possible time."""
    check = Known()

    def check_and_lose(txn: tl.Transaction) -> bool:
        holds = check(txn)
        if check.runs == 1:
            shop.table("shop.customers").delete("id = 2")
        return holds

    txn = shop.begin()
    txn.table("shop.orders").append({"customer": [2]})
    txn.add_check(check_and_lose)
    with pytest.raises(tl.CheckFailed, match="check_and_lose"):
        txn.commit()
    assert check.runs == 2
    assert orders(shop) == [1, 2]


def test_commit_succeeds_if_its_check_holds_on_the_newest_version(shop: tl.Lakehouse) -> None:
    check = Known()
    txn = ordering(shop, 2, check)
    shop.table("shop.customers").append({"id": [3]})
    shop.table("shop.orders").append({"customer": [3]})
    txn.commit()
    assert check.runs == 2
    assert (orders(shop), customers(shop)) == ([1, 2, 2, 3], {1, 2, 3})


def test_a_change_that_a_check_did_not_read_does_not_run_it_again(shop: tl.Lakehouse) -> None:
    check = Known()
    txn = ordering(shop, 1, check)
    txn.table("shop.products").scan().to_arrow()
    shop.table("shop.products").append({"id": [8]})
    shop.create_namespace("unrelated")
    txn.commit()
    assert check.runs == 1
    assert "products" not in str(shop.diff(shop.version - 1))
    assert shop.table("shop.products").scan().count() == 2


def test_objects_that_a_check_read_do_not_change(shop: tl.Lakehouse) -> None:
    before = shop.table("shop.customers")
    ordering(shop, 1, Known()).commit()
    after = shop.table("shop.customers")
    assert after.iceberg.metadata_location == before.iceberg.metadata_location
    assert after.id == before.id
    assert customers(shop) == {1, 2}


def test_check_reads_of_an_older_handle_are_tracked(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    handle = txn.table("shop.customers")
    assert handle.scan().count() == 2
    txn.table("shop.orders").append({"customer": [2]})
    txn.add_check(lambda _: handle.scan("id = 2").count() == 1)
    shop.table("shop.customers").delete("id = 2")
    with pytest.raises(tl.CheckFailed):
        txn.commit()


def test_two_transactions_whose_checks_read_the_same_table_both_commit(shop: tl.Lakehouse) -> None:
    checks = Known(), Known()
    first, second = (ordering(shop, customer, check) for customer, check in zip((1, 2), checks, strict=True))
    first.commit()
    second.commit()
    assert orders(shop) == [1, 1, 2, 2]
    assert [check.runs for check in checks] == [1, 2]  # the second check runs again, because both changed the orders


def test_a_check_does_not_delay_writers_of_the_table_that_it_read(shop: tl.Lakehouse) -> None:
    writer = shop.begin()
    writer.table("shop.customers").delete("id = 1")
    ordering(shop, 2, Known()).commit()
    writer.commit()
    assert customers(shop) == {2}


def test_a_check_sees_that_a_table_was_dropped(shop: tl.Lakehouse) -> None:
    held = shop.begin()
    handle = held.table("shop.customers")
    handle.scan().count()
    held.table("shop.orders").append({"customer": [1]})
    held.add_check(lambda _: handle.scan().count() > 0)
    named = ordering(shop, 1, SQL)
    tolerant = ordering(shop, 1, "SELECT true")
    tolerant.add_check(lambda txn: not txn.exists("shop.customers") or customers(txn) == {1, 2})
    shop.drop_table("shop.customers")
    for txn in (held, named):
        with pytest.raises(tl.ObjectNotFound, match=r"shop\.customers"):
            txn.commit()
    assert orders(shop) == [1, 2]
    tolerant.commit()
    assert orders(shop) == [1, 1, 2]


def test_check_reads_the_present_table_after_drop_and_create(shop: tl.Lakehouse) -> None:
    txn = ordering(shop, 1, Known())
    with shop.transaction() as other:
        other.drop_table("shop.customers")
        other.create_table("shop.customers", {"id": "int64"}).append({"id": [1, 2, 3]})
    txn.commit()
    assert customers(shop) == {1, 2, 3}
    assert orders(shop) == [1, 1, 2]


def test_repeated_check_reads_the_present_state_of_other_tables(shop: tl.Lakehouse) -> None:
    runs = []

    def check(txn: tl.Transaction) -> bool:
        runs.append((len(orders(txn)), txn.base_version))
        return len(runs) == 1 or customers(txn) == {1, 2}

    txn = shop.begin()
    txn.table("shop.customers").scan().to_arrow()
    txn.table("shop.orders").append({"customer": [2]})
    txn.add_check(check)
    with shop.transaction() as other:
        other.table("shop.orders").append({"customer": [1]})
        other.table("shop.customers").delete("id = 2")
    with pytest.raises(tl.CheckFailed):
        txn.commit()
    assert runs == [(3, 1), (4, 2)]
    assert orders(shop) == [1, 1, 2]


def test_reads_of_a_check_are_not_in_the_diff(shop: tl.Lakehouse) -> None:
    for check in (SQL, Known()):
        ordering(shop, 1, check).commit()
        assert str(shop.diff(shop.version - 1)) == "~ table shop.orders"


def test_a_write_does_not_conflict_with_a_check_that_read_the_table(shop: tl.Lakehouse) -> None:
    writer = shop.begin()
    writer.alter_namespace("shop", {"open": "yes"})
    writer.alter_table("shop.customers", {"comment": "ours"})
    ordering(shop, 2, Known()).commit()
    writer.commit()
    assert shop.table("shop.customers").properties["comment"] == "ours"


def test_serializable_conflicts_if_a_table_read_by_a_check_changed(shop: tl.Lakehouse) -> None:
    check = Known()
    txn = ordering(shop, 1, check, "serializable")
    shop.table("shop.customers").append({"id": [3]})
    with pytest.raises(tl.CommitConflict) as caught:
        txn.commit()
    assert caught.value.keys == ["table shop.customers"]
    assert check.runs == 1


def test_a_transaction_that_only_reads_makes_no_version_for_its_checks(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    txn.add_check(SQL)
    assert txn.commit() == shop.version == 1


def test_a_saved_transaction_is_checked_against_the_newest_tables(shop: tl.Lakehouse) -> None:
    txn = shop.begin(id="job")
    txn.table("shop.orders").append({"customer": [2]})
    txn.add_check(SQL)
    txn.save()
    shop.table("shop.customers").delete("id = 2")
    with pytest.raises(tl.CheckFailed):
        shop.resume("job").commit()
    assert orders(shop) == [1, 2]


def test_a_rule_over_two_tables_is_never_broken_by_writers_that_check_it(shop: tl.Lakehouse) -> None:
    """Concurrent writers that check a rule over two tables never break it (write skew). One writer deletes customers,
    the others add orders of these customers; each writes only one table."""
    failed = []

    def write(change: Load) -> None:
        for _ in range(4):
            txn = shop.begin()
            change(txn)
            txn.add_check(Known())
            try:
                txn.commit()
            except (tl.CheckFailed, tl.CommitConflict) as error:
                failed.append(error)

    changes: list[Load] = [
        lambda txn: txn.table("shop.customers").delete("id = 3"),
        lambda txn: txn.table("shop.customers").append({"id": [3]}),
        lambda txn: txn.table("shop.orders").append(pa.table({"customer": [3]})),
        lambda txn: txn.table("shop.orders").delete("customer = 3"),
    ]
    in_threads(write, changes)
    for version in range(1, shop.version + 1):
        at = shop.at(version)
        assert set(orders(at)) <= customers(at), version  # type: ignore[arg-type]
    assert failed, "no transaction failed"


def read_namespace(txn: tl.Transaction) -> bool:
    return txn.namespace("shop").properties.get("open", "yes") == "yes"


def read_view(txn: tl.Transaction) -> bool:
    return "id" in txn.view("shop.known").sql


def read_absent_table(txn: tl.Transaction) -> bool:
    return not txn.exists("shop.blocked")


def read_absent_namespace(txn: tl.Transaction) -> bool:
    return "closing" not in txn.namespaces() and not txn.exists("closing")


def read_listing(txn: tl.Transaction) -> bool:
    return len(txn.tables("shop")) == 3


CHANGES: list[tuple[Callable[[tl.Transaction], bool], Load]] = [
    (read_namespace, lambda txn: txn.alter_namespace("shop", {"open": "no"})),
    (read_view, lambda txn: txn.replace_view("shop.known", "SELECT 1")),
    (read_absent_table, lambda txn: txn.create_table("shop.blocked", {"id": "int64"})),
    (read_absent_namespace, lambda txn: txn.create_namespace("closing")),
    (read_listing, lambda txn: txn.create_table("shop.more", {"id": "int64"})),
]


@pytest.fixture
def view(shop: tl.Lakehouse) -> tl.View:
    return shop.create_view("shop.known", "SELECT id FROM customers", dialect="duckdb")


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize(("check", "change"), CHANGES, ids=[check.__name__ for check, _ in CHANGES])
@pytest.mark.parametrize("coordination", ["none", "queue"])
def test_all_reads_of_a_check_are_watched(
    shop: tl.Lakehouse, check: Callable[[tl.Transaction], bool], change: Load, coordination: tl.settings.Coordination
) -> None:
    txn, beside = shop.begin(id="job"), shop.begin()
    for one in (txn, beside):
        one.table("shop.orders").append({"customer": [1]})
        one.add_check(check)
    beside.commit(coordination=coordination)
    txn.save()
    with shop.transaction() as other:
        change(other)
    with pytest.raises(tl.CheckFailed, match=check.__name__):
        shop.resume("job", allow_checks=__name__).commit(coordination=coordination)
    assert orders(shop) == [1, 1, 2]


@pytest.mark.usefixtures("view")
def test_sql_may_name_views_and_the_tables_below_them_are_watched(shop: tl.Lakehouse) -> None:
    sql = "SELECT bool_and(customer IN (SELECT id FROM shop.known)) FROM shop.orders"
    ordering(shop, 2, sql).commit()
    with pytest.raises(tl.CheckFailed):
        ordering(shop, 9, sql).commit()
    below, itself = ordering(shop, 2, sql), ordering(shop, 1, sql)
    shop.table("shop.customers").delete("id = 2")
    with pytest.raises(tl.CheckFailed):
        below.commit()
    shop.table("shop.customers").append({"id": [2]})
    shop.replace_view("shop.known", "SELECT id FROM customers WHERE id > 1")
    with pytest.raises(tl.CheckFailed):
        itself.commit()
    assert orders(shop) == [1, 2, 2]


def test_names_in_a_view_use_its_default_namespace(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        txn.create_namespace("views.of.shop")
        txn.create_view(
            "views.of.shop.ids",
            {"spark": "SELECT nonsense(", "duckdb": "WITH customers AS (SELECT id FROM customers) FROM customers;"},
            default_namespace="shop",
        )
        txn.create_view("shop.twice", 'SELECT id, a.id AS again FROM "views.of.shop".ids AS a')
    sql = 'SELECT sum(again) = 3 FROM shop.twice JOIN "views.of.shop".ids USING (id) JOIN shop.customers USING (id)'
    ordering(shop, 1, sql).commit()
    assert orders(shop) == [1, 1, 2]


@pytest.mark.parametrize(
    ("view_sql", "sql", "message"),
    [
        ("SELECT * FROM shop.known", "SELECT true FROM shop.known", "refers to itself"),
        ("SELECT * FROM read_text('/etc/hostname')", "SELECT true FROM shop.known", "not allowed in queries"),
        ("SELECT 1; SELECT 2", "SELECT true FROM shop.known", "one statement"),
        ("SELECT 1", "DROP TABLE shop.orders", "SELECT"),
        ("SELECT 1", "SELECT true FROM a.b.c.t", '"a.b.c".t'),
    ],
)
def test_sql_that_cannot_be_answered_is_refused(shop: tl.Lakehouse, view_sql: str, sql: str, message: str) -> None:
    shop.create_view("shop.known", view_sql, dialect="duckdb")
    with pytest.raises(tl.InvalidArgument, match=message):
        ordering(shop, 1, sql).commit()
    assert orders(shop) == [1, 2]


@pytest.mark.parametrize("max_attempts", [None, 3])
def test_checks_do_not_run_again_without_end(shop: tl.Lakehouse, max_attempts: int | None) -> None:
    runs = []

    def check(txn: tl.Transaction) -> None:
        runs.append(txn.namespace("shop").properties.get("visits"))
        shop.alter_namespace("shop", {"visits": str(len(runs))})

    txn = shop.begin()
    txn.table("shop.orders").append({"customer": [1]})
    txn.add_check(check)
    with pytest.raises(tl.CommitConflict) as caught:
        txn.commit(max_attempts=max_attempts)
    assert caught.value.keys == ["namespace shop"]
    assert len(runs) == 1 + (max_attempts or 200)
    assert runs[:3] == [None, "1", "2"]
    assert orders(shop) == [1, 2]


def test_concurrent_checks_keep_their_condition(shop: tl.Lakehouse) -> None:
    """Concurrent transactions keep the condition that they check: one of four namespaces must stay open."""
    names = [f"ward_{number}" for number in range(4)]

    def still_open(txn: tl.Transaction | tl.Lakehouse) -> list[str]:
        return [name for name in names if txn.namespace(name).properties["open"] == "yes"]

    with shop.transaction() as txn:
        for name in names:
            txn.create_namespace(name, {"open": "yes"})
    transactions = []
    for name in names:
        txn = shop.begin()
        txn.alter_namespace(name, {"open": "no"})
        txn.add_check(lambda txn: bool(still_open(txn)))
        transactions.append(txn)
    failed: list[BaseException] = []

    def commit(txn: tl.Transaction) -> None:
        try:
            txn.commit()
        except tl.CheckFailed as error:
            failed.append(error)

    in_threads(commit, transactions)
    assert len(failed) == 1
    assert len(still_open(shop)) == 1


def append_elsewhere(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    shop.table("shop.orders").append({"customer": [1]})


def append_here(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.table("shop.orders").append({"customer": [1]})


def append_through_iceberg(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.table("shop.customers").iceberg.append(pa.table({"id": [3]}))


def create_here(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.create_namespace("made")


def commit_here(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.commit()


def roll_back_here(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.rollback()


def save_here(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.save()


def add_another(shop: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.add_check("SELECT true")


@pytest.mark.parametrize("end", [commit_here, roll_back_here, save_here, add_another])
def test_a_check_that_ends_its_transaction_is_refused(
    shop: tl.Lakehouse, end: Callable[[tl.Lakehouse, tl.Transaction], None]
) -> None:
    """A check cannot commit or roll back its transaction: a commit would run the checks again, and after a rollback
    there would be nothing to commit."""
    runs = []

    def check(txn: tl.Transaction) -> None:
        runs.append(customers(txn))
        end(shop, txn)

    txn = ordering(shop, 2, check)
    with pytest.raises(tl.InvalidArgument, match="must only read"):
        txn.commit()
    assert len(runs) == 1
    assert (orders(shop), txn.is_open) == ([1, 2], False)


@pytest.mark.parametrize("write", [append_elsewhere, append_here, append_through_iceberg, create_here])
@pytest.mark.parametrize("again", [False, True], ids=["the first time", "again"])
def test_a_check_that_writes_is_refused_at_once(
    shop: tl.Lakehouse, write: Callable[[tl.Lakehouse, tl.Transaction], None], again: bool
) -> None:
    """A check that writes to a table of its transaction is refused. It would wait for the table lock that its own
    commit holds."""
    runs = []

    def check(txn: tl.Transaction) -> bool:
        runs.append(txn)
        customers(txn)
        if len(runs) == 1 + again:
            write(shop, txn)
        elif again:
            shop.table("shop.customers").append({"id": [9]})  # the check runs again after this change
        return True

    txn = ordering(shop, 2, check)  # type: ignore[arg-type]
    with pytest.raises(tl.InvalidArgument, match="must only read"):
        txn.commit()
    assert len(runs) == 1 + again
    assert (orders(shop), txn.is_open) == ([1, 2], False)
    shop.table("shop.orders").append({"customer": [2]})  # no lock is held any more


@pytest.mark.parametrize("n_rows", [1, 300_000])
def test_a_check_that_writes_the_first_table_of_its_transaction_is_refused(shop: tl.Lakehouse, n_rows: int) -> None:
    before = orders(shop)
    txn = shop.begin()
    txn.create_namespace("other")
    txn.add_check(lambda txn: txn.table("shop.orders").append({"customer": range(n_rows)}) is not None)
    with pytest.raises(tl.InvalidArgument, match="must only read"):
        txn.commit()
    assert orders(shop) == before
    assert "other" not in shop.namespaces()


def test_a_check_that_waits_for_a_thread_that_writes_does_not_wait_for_ever(
    shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_locks, "TIMEOUT_SECONDS", 0.1)
    runs = []

    def check(txn: tl.Transaction) -> None:
        runs.append(customers(txn))
        if len(runs) == 1:
            shop.table("shop.customers").append({"id": [3]})
        if len(runs) == 2:
            writer = threading.Thread(target=append_elsewhere, args=(shop, txn))
            writer.start()
            writer.join()

    ordering(shop, 2, check).commit()  # type: ignore[arg-type]
    assert len(runs) >= 2
    assert orders(shop) == [1, 1, 2, 2]


@pytest.mark.parametrize("answer", [False, np.bool_(False), np.array(False), pa.scalar(False)])
def test_false_of_numpy_and_arrow_fails_a_check(shop: tl.Lakehouse, answer: object) -> None:
    """A check also fails if it returns NumPy's or Arrow's False, such as the result of `(frame.total > 0).all()`."""
    before = orders(shop)
    txn = ordering(shop, 2, lambda _: answer)  # type: ignore[arg-type]
    with pytest.raises(tl.CheckFailed):
        txn.commit()
    assert orders(shop) == before
