"""`coordination="queue"`: writers in several processes share roots, and no commit is lost."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

import trinitylake as tl
from trinitylake.errors import InvalidArgument
from waiting import PATIENCE_SECONDS

PROCESSES = 6
COMMITS = 25


def add_namespaces(root: str, process: int, properties_decide: bool) -> None:
    lake = tl.open(root, durability="none")
    for number in range(COMMITS):
        transaction = lake.begin(message=f"process {process}")
        transaction.create_namespace(f"p{process}_{number}")
        if properties_decide:
            transaction.commit()
        else:
            transaction.commit(coordination="queue")


@pytest.mark.parametrize("properties_decide", [True, False], ids=["lakehouse", "call"])
def test_processes_with_the_intent_queue_all_commit(tmp_path: Path, properties_decide: bool) -> None:
    properties = {"commit.coordination": "queue"} if properties_decide else None
    root = str(tmp_path / "lake")
    lake = tl.create(root, name="busy", properties=properties, durability="none")
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=add_namespaces, args=(root, process, properties_decide)) for process in range(PROCESSES)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE_SECONDS)
    assert [writer.exitcode for writer in writers] == [0] * PROCESSES
    assert len(lake.namespaces()) == PROCESSES * COMMITS
    committed = Counter(change.transaction.id for change in lake.changes(since=0))
    assert len(committed) == PROCESSES * COMMITS
    assert set(committed.values()) == {1}
    assert not list((tmp_path / "lake" / "_queue").glob("*"))


def test_an_unknown_coordination_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"commit\.coordination|coordination"):
        tl.create(str(tmp_path / "lake"), properties={"commit.coordination": "hope"})
    lake = tl.create(str(tmp_path / "lake"))
    transaction = lake.begin()
    transaction.create_namespace("ns")
    with pytest.raises(InvalidArgument, match="coordination"):
        transaction.commit(coordination="hope")  # type: ignore[arg-type]
