"""Random histories of the public API, compared with a model: every version has the objects of a dictionary.

The model has only the rules of the documentation. A transaction sees its base and its own writes. SNAPSHOT loses if
another transaction wrote the same name, SERIALIZABLE also if it wrote a name that was read. Every commit leaves an
intact lakehouse. Where the rules leave a choice, as for the names that a refused statement has read, the model accepts
both outcomes and expects the chosen one from then on.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import trinitylake as tl
from trinitylake.lakehouse.history import Change
from trinitylake.lakehouse.maintenance import LakehouseMaintenance

DEEP = bool(os.environ.get("TRINITYLAKE_DEEP"))

NAMESPACES = ("a", "a.b", "b", "é.数", "z-9")
NAMES = ("t", "u", "数据", "v-1", "w", "Z")
SCHEMA = {"id": "bigint"}

#: "namespace" or "object" (tables and views, which share their names), and the full name.
Key = tuple[str, str]
EVERY_KEY: frozenset[Key] = frozenset(
    [("namespace", namespace) for namespace in NAMESPACES]
    + [("object", f"{namespace}.{name}") for namespace in NAMESPACES for name in NAMES]
)


class Object(NamedTuple):
    """The model's knowledge of an object."""

    kind: str
    id: str
    state: tuple[tuple[str, str], ...]


State = dict[Key, Object]


def observe(reader: tl.Lakehouse | tl.LakehouseVersion | tl.Transaction) -> State:
    """The content of a version as a reader sees it."""
    state: State = {}
    for name in reader.namespaces():
        namespace = reader.namespace(name)
        state["namespace", name] = Object("namespace", namespace.id, tuple(sorted(namespace.properties.items())))
    for name in reader.views():
        view = reader.view(name)
        state["object", name] = Object("view", view.id, tuple(view.representations.items()))
    for name in reader.tables():
        assert ("object", name) not in state
        state["object", name] = Object("table", reader.table(name).id, ())
    return state


def namespace_of(name: str) -> Key:
    return "namespace", name.rpartition(".")[0]


def inside(state: State, namespace: str) -> set[Key]:
    """Nested namespaces at any depth, tables and views because of which a namespace cannot be dropped."""
    return {
        (kind, name)
        for kind, name in state
        if (kind == "namespace" and name.startswith(f"{namespace}."))
        or (kind == "object" and namespace_of(name)[1] == namespace)
    }


@dataclass
class Open:
    """An open transaction, and the expectations of the model."""

    transaction: tl.Transaction
    isolation: str
    base: int
    before: State
    state: State
    message: str
    written: set[Key] = field(default_factory=set)
    #: Names that were certainly read, and names that may have been read.
    read: set[Key] = field(default_factory=set)
    maybe_read: set[Key] = field(default_factory=set)

    @property
    def effective(self) -> set[Key]:
        """The writes, without objects that the transaction created and dropped again."""
        return {key for key in self.written if key in self.state or key in self.before}


@dataclass
class Wrote:
    """Objects that a version certainly wrote, and objects that it may have written."""

    certainly: set[Key] = field(default_factory=set)
    maybe: set[Key] = field(default_factory=set)


names = st.sampled_from([f"{namespace}.{name}" for namespace in NAMESPACES for name in NAMES])
namespaces = st.sampled_from(NAMESPACES)
kinds = st.sampled_from(["view"] * 5 + ["table"])
values = st.integers(0, 3).map(str)
seconds = st.booleans()
isolations: st.SearchStrategy[Any] = st.sampled_from(["snapshot", "serializable"])

#: Methods of the machine with their arguments after the transaction. Frequent methods are listed more than once.
statements = st.one_of(
    *[st.tuples(st.just("create_object"), names, kinds, values)] * 6,
    *[st.tuples(st.just("drop_object"), names)] * 3,
    *[st.tuples(st.just("replace_view"), names, values)] * 2,
    *[st.tuples(st.just("alter_namespace"), namespaces, values)] * 2,
    st.tuples(st.just("create_namespace"), namespaces, values),
    st.tuples(st.just("drop_namespace"), namespaces),
    st.tuples(st.just("drop_namespace_with_all_in_it"), namespaces),
    st.tuples(st.just("rename_object"), names, names),
    st.tuples(st.just("look_at_one"), names),
    st.tuples(st.just("look_at_everything")),
)
work = st.lists(statements, min_size=1, max_size=8)


class LakehouseMachine(RuleBasedStateMachine):
    """Several concurrent transactions on one lakehouse through two handles, and reads of all its versions."""

    transactions: Bundle[Open] = Bundle("transactions")

    @initialize(order=st.sampled_from([3, 4, 5]), buffer=st.sampled_from(["200", "3000"]))
    def create(self, order: int, buffer: str) -> None:
        root = f"memory://{uuid.uuid4()}"
        properties = {"root.buffer-size-bytes": buffer, "inner.buffer-size-bytes": buffer}
        self.lake = tl.create(root, name="model", order=order, properties=properties)
        self.other = tl.open(root)
        self.versions: dict[int, State] = {0: {}}
        self.wrote: dict[int, Wrote] = {0: Wrote()}
        self.messages: dict[int, str] = {0: ""}
        self.rollbacks: dict[int, int] = {}
        self.oldest = 0
        self.begun = 0
        start: list[tuple[Any, ...]] = [("create_namespace", namespace, "0") for namespace in NAMESPACES[:4]]
        start += [("create_object", f"{namespace}.{name}", "view", "0") for namespace in "ab" for name in NAMES]
        self.work_and_commit("snapshot", False, start)

    @property
    def latest(self) -> int:
        return max(self.versions)

    def handle(self, second: bool) -> tl.Lakehouse:
        return self.other if second else self.lake

    # Transactions

    def open(self, isolation: Any, second: bool) -> Open:
        self.begun += 1
        message = f"message {self.begun}"
        transaction = self.handle(second).begin(isolation=isolation, message=message, author="model")
        assert transaction.base_version == self.latest
        state = self.versions[self.latest]
        return Open(transaction, isolation, self.latest, state, dict(state), message)

    @rule(target=transactions, isolation=isolations, second=seconds, todo=work)
    def begin(self, isolation: Any, second: bool, todo: list[tuple[Any, ...]]) -> Open:
        return self.work(self.open(isolation, second), todo)

    @rule(one=transactions, todo=work)
    def go_on(self, one: Open, todo: list[tuple[Any, ...]]) -> None:
        self.work(one, todo)

    @rule(isolation=isolations, second=seconds, todo=work)
    def work_and_commit(self, isolation: Any, second: bool, todo: list[tuple[Any, ...]]) -> None:
        self.end(self.work(self.open(isolation, second), todo))

    def work(self, one: Open, todo: list[tuple[Any, ...]]) -> Open:
        for statement, *arguments in todo:
            getattr(self, statement)(one, *arguments)
        return one

    def create_namespace(self, one: Open, name: str, value: str) -> None:
        key = "namespace", name
        if key in one.state:
            with pytest.raises(tl.ObjectAlreadyExists):
                one.transaction.create_namespace(name)
            one.read.add(key)
            return
        made = one.transaction.create_namespace(name, {"n": value})
        one.state[key] = Object("namespace", made.id, (("n", value),))
        one.written.add(key)

    def alter_namespace(self, one: Open, name: str, value: str) -> None:
        key = "namespace", name
        one.read.add(key)
        if key not in one.state:
            with pytest.raises(tl.ObjectNotFound):
                one.transaction.alter_namespace(name, {"n": value})
            return
        assert one.transaction.alter_namespace(name, {"n": value}).id == one.state[key].id
        one.state[key] = one.state[key]._replace(state=(("n", value),))
        one.written.add(key)

    def drop_namespace(self, one: Open, name: str) -> None:
        key = "namespace", name
        if key not in one.state:
            one.read.add(key)
            with pytest.raises(tl.ObjectNotFound):
                one.transaction.drop_namespace(name)
            return
        if content := inside(one.state, name):
            with pytest.raises(tl.NamespaceNotEmpty):
                one.transaction.drop_namespace(name)
            # The statement has read the first of these names that it found.
            one.maybe_read |= content
            return
        one.transaction.drop_namespace(name)
        del one.state[key]
        one.written.add(key)

    def drop_namespace_with_all_in_it(self, one: Open, name: str) -> None:
        key = "namespace", name
        if key not in one.state:
            one.read.add(key)
            with pytest.raises(tl.ObjectNotFound):
                one.transaction.drop_namespace(name, cascade=True)
            return
        one.transaction.drop_namespace(name, cascade=True)
        one.maybe_read |= EVERY_KEY
        below = {namespace for kind, namespace in inside(one.state, name) if kind == "namespace"} | {name}
        for dropped in [key for key in one.state if key[1] in below or namespace_of(key[1])[1] in below]:
            if dropped[0] == "object" or dropped[1] in below:
                del one.state[dropped]
                one.written.add(dropped)

    def create_object(self, one: Open, name: str, kind: str, value: str) -> None:
        key = "object", name

        def create() -> Object:
            if kind == "view":
                view = one.transaction.create_view(name, f"SELECT {value}")
                return Object("view", view.id, (("spark", f"SELECT {value}"),))
            return Object("table", one.transaction.create_table(name, SCHEMA).id, ())

        if key in one.state:
            one.read.add(key)
            with pytest.raises((tl.ObjectAlreadyExists, tl.ObjectNotFound)):
                create()
        elif namespace_of(name) not in one.state:
            one.read.add(namespace_of(name))
            with pytest.raises(tl.ObjectNotFound, match="namespace"):
                create()
        else:
            one.state[key] = create()
            one.written.add(key)
            one.maybe_read.add(key)

    def replace_view(self, one: Open, name: str, value: str) -> None:
        key = "object", name
        one.read.add(key)
        found = one.state.get(key)
        if found is None or found.kind != "view":
            with pytest.raises(tl.ObjectNotFound):
                one.transaction.replace_view(name, f"SELECT {value}")
            return
        one.transaction.replace_view(name, f"SELECT {value}")
        one.state[key] = found._replace(state=(("spark", f"SELECT {value}"),))
        one.written.add(key)

    def drop_object(self, one: Open, name: str) -> None:
        key = "object", name
        found = one.state.get(key)
        drop = one.transaction.drop_table if found and found.kind == "table" else one.transaction.drop_view
        if found is None:
            one.maybe_read.add(key)
            with pytest.raises(tl.ObjectNotFound):
                drop(name)
            return
        drop(name)
        del one.state[key]
        one.written.add(key)

    def rename_object(self, one: Open, name: str, new_name: str) -> None:
        old, new = ("object", name), ("object", new_name)
        found = one.state.get(old)
        rename = one.transaction.rename_table if found and found.kind == "table" else one.transaction.rename_view
        one.maybe_read |= {old, new, namespace_of(new_name)}
        if found is None:
            with pytest.raises(tl.ObjectNotFound):
                rename(name, new_name)
        elif new in one.state:
            with pytest.raises(tl.ObjectAlreadyExists):
                rename(name, new_name)
        elif namespace_of(new_name) not in one.state:
            with pytest.raises(tl.ObjectNotFound):
                rename(name, new_name)
        else:
            rename(name, new_name)
            one.state[new] = one.state.pop(old)
            one.written |= {old, new}

    def look_at_one(self, one: Open, name: str) -> None:
        found = one.state.get(("object", name))
        # `a.b` can be a nested namespace, but none of these names is.
        assert one.transaction._kind(name) == (found and found.kind)
        one.read.add(("object", name))
        one.maybe_read.add(("namespace", name))

    def look_at_everything(self, one: Open) -> None:
        assert observe(one.transaction) == one.state
        one.read |= EVERY_KEY

    @rule(one=consumes(transactions))
    def commit(self, one: Open) -> None:
        self.end(one)

    def end(self, one: Open) -> None:
        """Commit, and compare the outcome with the model."""
        certainly, maybe = self.touched_since(one.base)
        effective = one.effective
        # A rename to another name and back is a write without a change.
        net = {key for key in effective if one.state.get(key) != one.before.get(key)}
        reads = one.read | one.written if one.isolation == "serializable" else set()
        maybe_reads = reads | (one.maybe_read if one.isolation == "serializable" else set())
        # If versions have expired since, a handle can commit only if it has cached their changes.
        must_lose = bool(effective) and bool(certainly & (net | reads))
        others = self.versions[self.latest]
        required = {namespace_of(name) for kind, name in effective if kind == "object"}
        freed = {name for kind, name in effective if kind == "namespace" and (kind, name) not in one.state}
        watched = effective | maybe_reads | required | {key for name in freed for key in inside(others, name)}
        must_win = not maybe & watched and one.base >= self.oldest
        outcome = self.outcome(one.transaction)
        if isinstance(outcome, tl.TrinityLakeError):
            assert not must_win, f"no change conflicts, but the commit failed: {outcome!r}"
            assert one.base < self.oldest or not isinstance(outcome, tl.TransactionExpired)
            assert not one.transaction.is_open
            return
        version = outcome
        assert not must_lose, f"version {version} was committed over what {one.base} did not know"
        if not effective:
            assert version == one.base
            return
        state = dict(others)
        for key in effective:
            if key in one.state:
                state[key] = one.state[key]
            else:
                state.pop(key, None)
        self.committed(version, state, Wrote(net, effective), one.message)
        (transaction,) = self.lake.log(1)[0].transactions
        assert (transaction.id, transaction.began_at_version) == (one.transaction.id, one.base)
        assert transaction.isolation == one.isolation

    @staticmethod
    def outcome(transaction: tl.Transaction) -> int | tl.TrinityLakeError:
        lost = (tl.CommitConflict, tl.ObjectNotFound, tl.NamespaceNotEmpty, tl.ObjectAlreadyExists)
        try:
            return transaction.commit()
        except (*lost, tl.TransactionExpired) as error:
            return error

    @rule(one=consumes(transactions))
    def give_up(self, one: Open) -> None:
        one.transaction.rollback()
        with pytest.raises(tl.TransactionClosed):
            one.transaction.commit()

    def touched_since(self, base: int) -> tuple[set[Key], set[Key]]:
        wrote = [self.wrote[version] for version in range(base + 1, self.latest + 1)]
        certainly = set[Key]().union(*(one.certainly for one in wrote))
        return certainly, certainly.union(*(one.maybe for one in wrote))

    def committed(self, version: int, state: State, wrote: Wrote, message: str) -> None:
        assert version == self.latest + 1
        for kind, name in state:
            if kind == "object":
                assert namespace_of(name) in state, f"version {version} has {name} in a namespace that is gone"
        self.versions[version] = state
        self.wrote[version] = wrote
        self.messages[version] = message
        assert observe(self.lake) == state

    # History

    @precondition(lambda self: self.latest > 1)
    @rule(back=st.integers(1, 6), second=seconds)
    def roll_back(self, back: int, second: bool) -> None:
        target = max(self.oldest, self.latest - back)
        latest = self.latest
        version = self.handle(second).rollback(target, message="back")
        state = dict(self.versions[target])
        before = self.versions[latest]
        changed = {key for key in EVERY_KEY if state.get(key) != before.get(key)}
        self.rollbacks[version] = latest
        self.committed(version, state, Wrote(changed, self.touched_since(target)[1]), "back")

    @precondition(lambda self: self.latest - self.oldest > 4)
    @rule(keep=st.integers(0, 3), second=seconds, dry=st.booleans())
    def expire(self, keep: int, second: bool, dry: bool) -> None:
        before = self.latest - keep
        handle = self.handle(second)
        expected = list(range(self.oldest, before))
        assert handle.maintenance.expire(before=before, dry_run=True) == expected
        if dry:
            return
        assert handle.maintenance.expire(before=before) == expected
        self.oldest = before
        with pytest.raises(tl.VersionExpired):
            tl.open(self.lake.uri).at(before - 1)

    @rule(back=st.integers(0, 10), second=seconds)
    def look_back(self, back: int, second: bool) -> None:
        version = max(self.oldest, self.latest - back)
        at = self.handle(second).at(version)
        assert observe(at) == self.versions[version]
        assert at.entry.rollback_from == self.rollbacks.get(version)
        assert self.handle(second).at(at.created_at).version == version

    @rule(back=st.integers(0, 6), span=st.integers(0, 6), second=seconds)
    def compare(self, back: int, span: int, second: bool) -> None:
        after = max(self.oldest, self.latest - back)
        before = max(self.oldest, after - span)
        old, new = self.versions[before], self.versions[after]
        diff = self.handle(second).diff(before, after)

        def changes(keys: set[Key], state: State) -> set[Change]:
            return {Change(state[key].kind, key[1]) for key in keys}

        # If a name changes from a table to a view, the table is removed and the view is new.
        swapped = {key for key in old.keys() & new.keys() if old[key].kind != new[key].kind}
        assert set(diff.added) == changes((new.keys() - old.keys()) | swapped, new)
        assert set(diff.removed) == changes((old.keys() - new.keys()) | swapped, old)
        different = {key for key in (old.keys() & new.keys()) - swapped if old[key] != new[key]}
        rewritten = set().union(*(self.wrote[v].certainly | self.wrote[v].maybe for v in range(before + 1, after + 1)))
        assert changes(different, new) <= set(diff.changed) <= changes((rewritten & new.keys()) - swapped, new)

    @rule(second=seconds)
    def read_the_log(self, second: bool) -> None:
        log = self.handle(second).log(None)
        assert [entry.version for entry in log] == list(range(self.latest, self.oldest - 1, -1))
        assert [entry.message for entry in log] == [self.messages[entry.version] for entry in log]
        assert [entry.rollback_from for entry in log] == [self.rollbacks.get(entry.version) for entry in log]
        assert all(newer.created_at > older.created_at for newer, older in pairwise(log))

    @rule()
    def begin_anew(self) -> None:
        """Open a third handle, which has cached nothing."""
        assert observe(tl.open(self.lake.uri)) == self.versions[self.latest]

    @invariant()
    def the_latest_version_is_known(self) -> None:
        if hasattr(self, "lake"):
            assert self.lake.version == self.other.version == self.latest

    def teardown(self) -> None:
        if not hasattr(self, "lake"):
            return
        fresh = tl.open(self.lake.uri)
        for version in range(self.oldest, self.latest + 1):
            at = fresh.at(version)
            assert observe(at) == self.versions[version], version
            at.nodes()  # checks the whole tree
        for version in range(self.oldest):
            with pytest.raises(tl.VersionExpired):
                fresh.at(version)
        with pytest.raises(tl.VersionNotFound):
            fresh.at(self.latest + 1)


LakehouseMachine.TestCase.settings = settings(
    max_examples=600 if DEEP else 40,  # as many find each of the planted mistakes below
    stateful_step_count=120 if DEEP else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLakehouse = LakehouseMachine.TestCase
TestLakehouse.pytestmark = pytest.mark.timeout(7200 if DEEP else 300)


def forgets_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    views = tl.Lakehouse.views
    monkeypatch.setattr(
        tl.Lakehouse, "views", lambda self, *within: [v for v in views(self, *within) if "b.w" not in v]
    )


def takes_a_conflict_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = tl.Transaction.commit

    def careless(self: tl.Transaction) -> int:
        try:
            return commit(self)
        except tl.CommitConflict:
            return self._lakehouse.latest().number

    monkeypatch.setattr(tl.Transaction, "commit", careless)


def goes_back_one_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = tl.Lakehouse.rollback
    monkeypatch.setattr(tl.Lakehouse, "rollback", lambda self, to, **more: rollback(self, max(1, to - 1), **more))


def expires_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = LakehouseMaintenance.expire

    def eager(self: LakehouseMaintenance, *, before: int, dry_run: bool = False) -> list[int]:
        expired = expire(self, before=before, dry_run=dry_run)
        if not dry_run and before < self._handle.core.latest().number:
            expire(self, before=before + 1)
        return expired

    monkeypatch.setattr(LakehouseMaintenance, "expire", eager)


def sees_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    rollback = tl.Transaction.rollback

    def commits_instead(self: tl.Transaction) -> None:
        if self.is_open and self._core.written_keys().num_rows:
            self._core.commit()
        rollback(self)

    monkeypatch.setattr(tl.Transaction, "rollback", commits_instead)


def looks_up_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    at = tl.Lakehouse.at

    def off_by_one(self: tl.Lakehouse, version: Any = None) -> tl.LakehouseVersion:
        found = at(self, version)
        return at(self, found.version - 1) if isinstance(version, datetime) and found.version > 1 else found

    monkeypatch.setattr(tl.Lakehouse, "at", off_by_one)


@pytest.mark.parametrize(
    "mistake",
    [
        forgets_a_view,
        takes_a_conflict_for_success,
        goes_back_one_too_far,
        expires_one_too_many,
        sees_what_is_not_committed,
        looks_up_the_version_before,
    ],
)
def test_the_model_finds_a_planted_mistake(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    found = (AssertionError, tl.TrinityLakeError, pytest.fail.Exception, ExceptionGroup)
    with pytest.raises(found):
        run_state_machine_as_test(
            LakehouseMachine,
            settings=settings(LakehouseMachine.TestCase.settings, phases=[Phase.generate], database=None),
        )


def test_handle_that_expired_a_version_does_not_read_it_from_its_cache() -> None:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    for name in "abc":
        lake.create_namespace(name)
    assert lake.at(1).namespaces() == ["a"]
    assert lake.maintenance.expire(before=2) == [0, 1]
    with pytest.raises(tl.VersionExpired):
        lake.at(1)
    assert lake.at(2).namespaces() == ["a", "b"]
