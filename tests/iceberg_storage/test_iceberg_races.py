"""Many concurrent writers of one Iceberg table: all of them commit, and the result is serializable."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest
from test_iceberg_rebase import check_whole, set_properties
from test_iceberg_staging import Lake, ids, rows

from iceberg_storage import STORES, Store, make_store
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict
from waiting import in_threads


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


def test_eight_writers_on_one_table_all_land(store: Store) -> None:
    """Eight writers of one table all commit. Each commits as a lakehouse does: after a lost race it rebases and tries
    again.
    """
    lake = Lake(store)
    slot = threading.Lock()
    redone = []

    def work(start: int) -> None:
        for id in range(start, start + 5):
            base = lake.path
            staged = StagedTable.load(("ns", "t"), base, io=lake.io)
            staged.table.append(rows(id))
            while True:
                path, data = staged.finish()
                store.put_many([(path, data)])
                with slot:
                    if lake.path == base:
                        lake.path = path
                        break
                    base = lake.path
                redone.append(id)
                staged.reapply(base)

    in_threads(work, range(0, 80, 10))
    assert lake.ids() == sorted(start * 10 + id for start in range(8) for id in range(5))
    assert redone, "no writer lost a race"
    check_whole(lake)


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_random_races_end_as_if_one_came_after_the_other(tmp_path: Path) -> None:
    """Random concurrent changes have the same result as one after the other, compared with a set of ids. Only
    statements whose rows have changed conflict."""
    outcomes = Counter[str]()
    for seed in range(5):
        race(Random(seed), Lake(make_store("remote", tmp_path)), outcomes)
    assert outcomes["redone with deletes"] >= 3, outcomes
    assert outcomes["conflict"] >= 3, outcomes


def race(random: Random, lake: Lake, outcomes: Counter[str]) -> None:
    """Six races of two transactions each."""
    model: set[int] = set()
    fresh = count(1)
    for _ in range(6):
        sides = [lake.begin(), lake.begin()]
        plans: list[list[tuple[str, list[int]]]] = []
        for staged in sides:
            plan = []
            seen = set(model)
            for _ in range(random.randint(1, 4)):
                kind = random.choice(["append", "append", "append", "delete", "property"])
                if kind == "append":
                    new = [next(fresh) for _ in range(random.randint(1, 3))]
                    staged.table.append(rows(*new))
                    seen |= set(new)
                elif kind == "delete" and seen:
                    new = random.sample(sorted(seen), min(len(seen), 2))
                    staged.table.delete(f"id in ({', '.join(map(str, new))})" if len(new) > 1 else f"id = {new[0]}")
                    seen -= set(new)
                else:
                    new = []
                    set_properties(**{f"p{next(fresh)}": "x"})(staged.table)
                plan.append((kind, new))
            plans.append(plan)
            assert ids(staged) == sorted(seen)
        lake.commit(sides[0])
        model = replay(model, plans[0])
        assert lake.ids() == sorted(model)
        depends = any(kind == "delete" and gone for kind, gone in plans[1])
        moved = any(new for kind, new in plans[0] if kind != "property")
        try:
            sides[1].reapply(lake.path)
        except TableConflict as conflict:
            outcomes["conflict"] += 1
            reason = conflict.requirement
        else:
            reason = ""
        assert not reason or ("assert-ref-snapshot-id" in reason and depends and moved)
        if reason:
            continue
        outcomes["redone with deletes" if depends and moved else "redone"] += 1
        lake.commit(sides[1])
        model = replay(model, plans[1])
        assert lake.ids() == sorted(model)
    check_whole(lake)


def replay(ids: set[int], plan: list[tuple[str, list[int]]]) -> set[int]:
    result = set(ids)
    for kind, changed in plan:
        result = result | set(changed) if kind == "append" else result - set(changed)
    return result
