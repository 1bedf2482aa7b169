"""Checks hold for what is committed, whatever others did to the tables that they read."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

import trinitylake as tl

Load = Callable[[tl.Transaction], object]


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Orders of customers 1 and 2, who are known; and products, which nobody asks about."""
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
    """Every order has a customer. Counts how often it was asked."""

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


def test_the_race_is_closed_up_to_the_creation_of_the_root(shop: tl.Lakehouse) -> None:
    """The other transaction commits when the check has been run, which is as late as it can."""
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


def test_a_check_that_still_holds_lets_the_commit_pass_on_what_it_read_last(shop: tl.Lakehouse) -> None:
    check = Known()
    txn = ordering(shop, 2, check)
    shop.table("shop.customers").append({"id": [3]})
    shop.table("shop.orders").append({"customer": [3]})
    txn.commit()
    assert check.runs == 2
    assert (orders(shop), customers(shop)) == ([1, 2, 2, 3], {1, 2, 3})


def test_a_check_does_not_run_again_for_what_it_did_not_read(shop: tl.Lakehouse) -> None:
    check = Known()
    txn = ordering(shop, 1, check)
    txn.table("shop.products").scan().to_arrow()
    shop.table("shop.products").append({"id": [8]})
    shop.create_namespace("unrelated")
    txn.commit()
    assert check.runs == 1
    assert "products" not in str(shop.diff(shop.version - 1))
    assert shop.table("shop.products").scan().count() == 2


def test_what_a_check_read_stays_as_it_is(shop: tl.Lakehouse) -> None:
    before = shop.table("shop.customers")
    ordering(shop, 1, Known()).commit()
    after = shop.table("shop.customers")
    assert after.metadata_location == before.metadata_location
    assert after.id == before.id
    assert customers(shop) == {1, 2}


def test_a_handle_from_before_counts_as_read_when_the_check_uses_it(shop: tl.Lakehouse) -> None:
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
    assert [check.runs for check in checks] == [1, 2]  # again for the orders, which both changed


def test_who_writes_to_a_table_is_not_hurt_by_a_check_that_read_it(shop: tl.Lakehouse) -> None:
    writer = shop.begin()
    writer.table("shop.customers").delete("id = 1")
    ordering(shop, 2, Known()).commit()
    writer.commit()
    assert customers(shop) == {2}


def test_a_table_that_a_check_read_and_somebody_dropped_is_a_conflict(shop: tl.Lakehouse) -> None:
    txn = ordering(shop, 1, Known())
    shop.drop_table("shop.customers")
    with pytest.raises(tl.CommitConflict) as caught:
        txn.commit()
    assert caught.value.keys == ["table shop.customers"]
    assert orders(shop) == [1, 2]


def test_a_table_that_was_dropped_and_created_again_is_checked_as_it_is_now(shop: tl.Lakehouse) -> None:
    txn = ordering(shop, 1, Known())
    with shop.transaction() as other:
        other.drop_table("shop.customers")
        other.create_table("shop.customers", {"id": "int64"}).append({"id": [1, 2, 3]})
    txn.commit()
    assert customers(shop) == {1, 2, 3}
    assert orders(shop) == [1, 1, 2]


def test_a_check_that_reads_another_table_when_it_runs_again_conflicts_if_that_was_changed(shop: tl.Lakehouse) -> None:
    runs = []

    def check(txn: tl.Transaction) -> bool:
        runs.append(len(orders(txn)))
        return len(runs) == 1 or customers(txn) == {1, 2}

    txn = shop.begin()
    txn.table("shop.orders").append({"customer": [2]})
    txn.add_check(check)
    with shop.transaction() as other:
        other.table("shop.orders").append({"customer": [1]})
        other.table("shop.customers").delete("id = 2")
    with pytest.raises(tl.CommitConflict, match=r"shop\.customers late") as caught:
        txn.commit()
    assert runs == [3, 4]
    assert caught.value.keys == ["table shop.customers"]
    assert orders(shop) == [1, 1, 2]


def test_under_serializable_isolation_what_a_check_read_must_not_have_changed(shop: tl.Lakehouse) -> None:
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
    """Write skew: one writer drops customers, the others add orders of theirs. Each writes one table only."""
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
    threads = [threading.Thread(target=write, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for version in range(1, shop.version + 1):
        at = shop.at(version=version)
        assert set(orders(at)) <= customers(at), version  # type: ignore[arg-type]
    assert failed, "some had to give way"
