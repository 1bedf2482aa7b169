"""Random histories of a lakehouse, with a dictionary of the objects that each version must contain.

Only this module of the package writes with TrinityLake.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import trinitylake as tl
from trinitylake.definitions import new_table_def, serialize

#: Objects of a version: (kind, namespace, name) -> (id, properties).
State = dict[tuple[str, str, str], tuple[str, dict[str, str]]]

PARTS = ["a", "b", "nyc", "é", "数据", "with-dash", "under_score", "Z9", "a\u0301", "x/y", "back\\slash", "\U0001f600"]
ROWS = pa.table({"id": [1, 2]})


@dataclass
class Rates:
    """Probabilities of statements, and settings that determine the shape of the tree."""

    order: int
    root_buffer_size_bytes: int
    inner_buffer_size_bytes: int
    statements: int
    delete: float


@dataclass
class History:
    """A lakehouse, and the objects that each of its versions must contain."""

    lake: tl.Lakehouse
    chosen: random.Random
    rates: Rates
    states: list[State] = field(default_factory=lambda: [{}])
    rollbacks: dict[int, int] = field(default_factory=dict)
    records: dict[int, set[str]] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    table_statements: int = 0

    def step(self) -> None:
        """Commit a random statement, as one or two versions."""
        draw = self.chosen.random()
        if draw < 0.06 and len(self.states) > 2:
            self._roll_back()
        elif draw < 0.1:
            self.lake.alter({"step": str(len(self.states))})
            self._committed(dict(self.states[-1]))
        elif draw < 0.14 and self.table_statements < 6:
            self._write_real_table()
        elif draw < 0.18:
            self._give_up()
        else:
            self._transact()

    def _committed(self, state: State) -> None:
        self.states.append(state)
        assert self.lake.version == len(self.states) - 1

    def _roll_back(self) -> None:
        target = self.chosen.randrange(len(self.states))
        self.rollbacks[len(self.states)] = len(self.states) - 1
        self.lake.rollback(target, message="back")
        self._committed(dict(self.states[target]))

    def _give_up(self) -> None:
        """Roll back a saved transaction, which creates a version."""
        id = f"given-up-{len(self.states)}"
        txn = self.lake.begin(id=id)
        txn.create_namespace(f"never{len(self.states)}")
        for _ in range(self.chosen.randint(1, 3)):
            txn.save()
        txn.rollback()
        self.records[len(self.states)] = {id}
        self.given_up.add(id)
        self._committed(dict(self.states[-1]))

    def _write_real_table(self) -> None:
        """Create a managed table and append rows to it."""
        state = dict(self.states[-1])
        self.table_statements += 1
        name = f"rows{self.table_statements}"
        namespace = f"tables{self.table_statements}"
        if ("namespace", namespace, "") in state:
            return
        with self.lake.transaction(message="table") as txn:
            made = txn.create_namespace(namespace)
            table = txn.create_table((namespace, name), ROWS)
            table.append(ROWS)
        state["namespace", namespace, ""] = made.id, {}
        state["table", namespace, name] = table.id, {}
        self._committed(state)

    def _transact(self) -> None:
        state = dict(self.states[-1])
        id = f"chosen-{len(self.states)}" if self.chosen.random() < 0.1 else None
        isolation: Any = self.chosen.choice(["snapshot", "serializable"])
        txn = self.lake.begin(isolation=isolation, message="städte", author="history", id=id)
        for _ in range(self.chosen.randint(1, self.rates.statements)):
            self._statement(txn, state)
        if state == self.states[-1]:
            txn.rollback()
            return
        txn.commit()
        if id is not None:
            self.records[len(self.states)] = {id}
        self._committed(state)

    def _statement(self, txn: tl.Transaction, state: State) -> None:
        names = [key for key in state if key[0] != "namespace"]
        spaces = [key[1] for key in state if key[0] == "namespace"]
        draw = self.chosen.random()
        if state and draw < self.rates.delete:
            self._drop(txn, state)
        elif names and draw < self.rates.delete + 0.1:
            self._rename(txn, state, self.chosen.choice(names), self.chosen.choice(spaces))
        elif state and draw < self.rates.delete + 0.2:
            self._replace(txn, state, self.chosen.choice(list(state)))
        else:
            self._create(txn, state, spaces)

    def _create(self, txn: tl.Transaction, state: State, spaces: list[str]) -> None:
        properties = {"n": str(self.chosen.randrange(100))}
        if not spaces or self.chosen.random() < 0.35:
            namespace = self._name(3)
            if ("namespace", namespace, "") not in state:
                state["namespace", namespace, ""] = txn.create_namespace(namespace, properties).id, properties
            return
        namespace, name = self.chosen.choice(spaces), self._name(1)
        if ("table", namespace, name) in state or ("view", namespace, name) in state:
            return
        if self.chosen.random() < 0.5:
            view = txn.create_view((namespace, name), f"SELECT {len(state)}", properties=properties)
            state["view", namespace, name] = view.id, properties
        else:
            # A table definition without Iceberg metadata is a hundred times faster, and makes no difference for the
            # tree.
            definition = new_table_def(properties=properties)
            txn._state().create("table", namespace, name, serialize(definition))
            state["table", namespace, name] = definition.id, properties

    def _drop(self, txn: tl.Transaction, state: State) -> None:
        kind, namespace, name = self.chosen.choice(list(state))
        if kind == "namespace":
            below = [
                key
                for key in state
                if key[1].startswith(namespace + ".") or (key[1] == namespace and key[0] != "namespace")
            ]
            # The objects in a namespace are dropped before it.
            for key in sorted(below, key=lambda key: (key[0] == "namespace", -len(key[1]))):
                txn._state().drop(key[0], key[1], key[2])  # type: ignore[arg-type]
            for key in list(state):
                if key in below:
                    del state[key]
        txn._state().drop(kind, namespace, name)  # type: ignore[arg-type]
        del state[kind, namespace, name]

    def _rename(self, txn: tl.Transaction, state: State, old: tuple[str, str, str], namespace: str) -> None:
        name = f"renamed{self.chosen.randrange(10)}"
        if "/" in old[1] + old[2] or ("table", namespace, name) in state or ("view", namespace, name) in state:
            return
        txn._state().rename(old[0], old[1], old[2], namespace, name)  # type: ignore[arg-type]
        state[old[0], namespace, name] = state.pop(old)

    def _replace(self, txn: tl.Transaction, state: State, key: tuple[str, str, str]) -> None:
        kind, namespace, name = key
        id, old = state[key]
        properties = {**old, "n": str(self.chosen.randrange(100))}
        if kind == "namespace":
            txn.alter_namespace(namespace, properties)
        elif kind == "view":
            txn.replace_view((namespace, name), properties=properties)
        elif old:
            txn._state().replace("table", namespace, name, serialize(new_table_def(id, properties=properties)))
        else:
            return
        state[key] = id, properties

    def _name(self, parts: int) -> str:
        chosen = [self.chosen.choice(PARTS) + str(self.chosen.randrange(20)) for _ in range(parts)]
        return ".".join(chosen[: self.chosen.randint(1, parts)])


def live(root: str, order: int, seed: int, versions: int) -> History:
    """A lakehouse with a random history of about that many versions."""
    chosen = random.Random(f"{order} {seed}")
    rates = Rates(
        order=order,
        root_buffer_size_bytes=chosen.choice([200, 1500, 6000]),
        inner_buffer_size_bytes=chosen.choice([200, 1500, 6000]),
        statements=chosen.choice([order, 4 * order]) if order < 100 else 60,
        delete=0.15,
    )
    lake = tl.create(
        root,
        name=f"seed {seed}",
        durability="none",
        order=order,
        namespace_name_max_size_bytes=chosen.choice([48, 100]),
        table_name_max_size_bytes=chosen.choice([24, 64]),
        view_name_max_size_bytes=chosen.choice([32, 100]),
        file_path_max_size_bytes=chosen.choice([120, 200]),
        properties={
            "root.buffer-size-bytes": str(rates.root_buffer_size_bytes),
            "inner.buffer-size-bytes": str(rates.inner_buffer_size_bytes),
        },
    )
    history = History(lake, chosen, rates)
    for number in range(versions):
        # The tree first grows, then shrinks, until most of its rows have been replaced.
        rates.delete = 0.15 if number < versions * 2 // 3 else chosen.choice([0.45, 0.8])
        history.step()
    return history
