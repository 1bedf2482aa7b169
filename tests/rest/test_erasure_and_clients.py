"""A client of the server that loaded a table before an erasure, and commits during or after it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from test_erase import ANN, FILTER, SCHEMA, holding, people

import trinitylake as tl
from local_files import age_instead_of_sleep
from rest.client import running
from trinitylake.lakehouse import erasure


@pytest.fixture
def _files_age_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    age_instead_of_sleep(monkeypatch, erasure, tmp_path)


@pytest.mark.usefixtures("_files_age_at_once")
@pytest.mark.parametrize("before", ["_replace_metadata", "_collected", None])
def test_a_client_with_former_metadata_brings_no_row_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """A commit that is based on metadata from before an erasure brings no row back. A rewritten snapshot keeps its id,
    so the client's requirement on the branch holds, but the client's manifest list names the former manifests."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN, "eve"))
    outcomes: list[Exception | None] = []
    with running(lake) as server:
        client = RestCatalog("stale", uri=f"http://127.0.0.1:{server.port}").load_table("raw.orders")
        transaction = client.transaction()
        transaction.append(people("late", first=9))

        def commit() -> None:
            try:
                transaction.commit_transaction()
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)

        with monkeypatch.context() as patch:
            if before is not None:
                original = getattr(erasure._ErasureRun, before)

                def after_commit(*arguments: Any) -> Any:
                    if not outcomes:
                        commit()
                    return original(*arguments)

                patch.setattr(erasure._ErasureRun, before, after_commit)
            done = lake.erase("raw.orders", FILTER)
        if before is None:
            commit()
            # The requirement fails with 409 first. The client retries, and the garbage collection has deleted its file.
            assert "TransactionExpired" in str(outcomes[0])
        if not done.is_verified:  # the commit came between the last pass and the garbage collection
            done = lake.erase("raw.orders", FILTER)
        assert done.is_verified
        ids = sorted(lake.table("raw.orders").to_arrow()["id"].to_pylist())
        assert ids == ([1, 3, 9] if outcomes == [None] else [1, 3])
    assert holding(tmp_path / "lake", ANN) == []
    assert lake.maintenance.fsck("all", data=True).is_sound


@pytest.mark.parametrize("statement", ["append", "delete", "overwrite"])
@pytest.mark.parametrize("kept_by", ["grace", "transaction"])
def test_a_client_brings_no_row_back_if_the_erasure_keeps_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_by: str, statement: str
) -> None:
    """A client that loaded the table before an erasure cannot commit afterwards, even if the former manifests still
    exist. A rewritten snapshot keeps its id, so the requirement on the branch alone would hold, and the erased row
    would be in the latest version again."""
    monkeypatch.setattr(erasure, "_COLLECTED_AFTER_SECONDS", 0)  # the files are too young to be deleted in any case
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.orders", SCHEMA).append(people("bob", ANN, "eve"))
    lake.table("raw.orders").append(people(ANN, "dan", first=4))
    if kept_by == "transaction":
        lake.begin(id="held").save()
    with running(lake) as server:
        client = RestCatalog("stale", uri=f"http://127.0.0.1:{server.port}").load_table("raw.orders")
        lake.erase("raw.orders", FILTER, grace="1 day" if kept_by == "grace" else None)
        with contextlib.suppress(CommitFailedException, ValidationException):
            match statement:
                case "append":
                    client.append(people("new", first=9))
                case "delete":
                    client.delete("id = 3")
                case "overwrite":
                    client.overwrite(people("new", first=9), "id = 3")
    emails = lake.table("raw.orders").to_arrow()["email"].to_pylist()
    assert ANN not in emails
    assert {"bob", "dan"} <= set(emails)
    assert lake.maintenance.fsck("all", data=True).is_sound
