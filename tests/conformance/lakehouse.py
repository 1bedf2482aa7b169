"""A whole lakehouse, read file by file: the versions there are, the tree of each, what it holds, its rules."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from conformance import name as names
from conformance.definition import lakehouse_definition, object_definition
from conformance.name import FILES, ObjectName, Sizes
from conformance.node import NodeRows, read_node, read_system_rows, require

TRANSACTION_FIELDS = {"id", "isolation", "message", "author", "began_at_version", "properties"}


@dataclass
class VisitedNode:
    """A node as one version's tree reaches it."""

    path: str
    parent: str | None
    rows: NodeRows


class SeedLakehouse:
    """A lakehouse as files: path below the root to content."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._nodes: dict[tuple[str, int], NodeRows] = {}

    # Versions (§7)

    @property
    def boundary(self) -> int:
        """Roots below it are gone."""
        return max((int(path.rpartition("/")[2]) for path in self.files if path.startswith("_expired/")), default=0)

    def has_version(self, version: int) -> bool:
        return names.root_path(version) in self.files

    def latest(self) -> int:
        """Start at the hint, or at the boundary; gallop upward, then bisect; look at all roots if nothing is there."""
        try:
            hint = int(self.files.get("_latest_hint.txt", b"").decode())
        except ValueError:
            hint = 0
        start = max(hint, self.boundary)
        if not self.has_version(start):
            return max(names.root_version(path) for path in self.files if FILES["root"].fullmatch(path))
        step = 1
        while self.has_version(start + step):
            start, step = start + step, step * 2
        above = start + step
        while above - start > 1:
            middle = (start + above) // 2
            start, above = (middle, above) if self.has_version(middle) else (start, middle)
        return start

    def versions(self) -> list[SeedVersion]:
        """All versions that are kept, oldest first; each checked on its own and against the one before."""
        latest = self.latest()
        kept = sorted(names.root_version(path) for path in self.files if FILES["root"].fullmatch(path))
        require(kept == list(range(self.boundary, latest + 1)), f"versions are contiguous: {kept}")
        versions = [SeedVersion(self, number) for number in kept]
        for version in versions:
            version.check()
        for before, after in pairwise(versions):
            after.check_against(before)
        return versions

    def check_file_names(self) -> None:
        """Every file outside of table folders has one of the names that the format knows."""
        for path in self.files:
            if "/metadata/" in path or "/data/" in path:
                continue
            require(any(pattern.fullmatch(path) for pattern in FILES.values()), f"{path!r} is a name of the format")

    def read_node(self, path: str, order: int) -> NodeRows:
        """A node file. They never change, so each is read once."""
        if (path, order) not in self._nodes:
            self._nodes[path, order] = read_node(self.files[path], order)
        return self._nodes[path, order]


class SeedVersion:
    """One version: its root, its tree, the objects in it."""

    def __init__(self, lakehouse: SeedLakehouse, number: int) -> None:
        self.lakehouse = lakehouse
        self.number = number
        self.path = names.root_path(number)

    @cached_property
    def definition_path(self) -> str:
        """From the system rows, which can be read before the order is known."""
        return read_system_rows(self.lakehouse.files[self.path])["lakehouse_def"]

    @cached_property
    def definition(self) -> dict[str, Any]:
        return lakehouse_definition(self.lakehouse.files[self.definition_path])

    @cached_property
    def inline_definitions(self) -> dict[str, bytes]:
        """Definitions that the root holds, since their files may not be there (§4)."""
        row = read_system_rows(self.lakehouse.files[self.path]).get("definitions_inline", "")
        lines = (line.split("\t") for line in row.splitlines())
        return {path: bytes.fromhex(text) for path, text in lines}

    @property
    def order(self) -> int:
        order: int = self.definition["order"]
        return order

    @property
    def sizes(self) -> Sizes:
        return Sizes(*(self.definition[f"{kind}_name_max_size_bytes"] for kind in ("namespace", "table", "view")))

    @cached_property
    def root(self) -> NodeRows:
        return self.lakehouse.read_node(self.path, self.order)

    @cached_property
    def transactions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.root.system["committed_txns"])
        return found

    # The tree (§5)

    @cached_property
    def nodes(self) -> list[VisitedNode]:
        """All nodes, parents first; what must hold between them is checked on the way."""
        visited: list[VisitedNode] = []
        self._visit(self.path, None, self.root, None, None, visited)
        paths = [node.path for node in visited]
        require(len(set(paths)) == len(paths), "no node has two parents")
        return visited

    def _visit(
        self,
        path: str,
        parent: str | None,
        rows: NodeRows,
        above: str | None,
        below: str | None,
        visited: list[VisitedNode],
    ) -> None:
        visited.append(VisitedNode(path, parent, rows))
        for key in [*rows.keys, *(message.key for message in rows.buffer)]:
            inside = (above is None or key.encode() > above.encode()) and (
                below is None or key.encode() < below.encode()
            )
            require(inside, f"{path}: {key!r} lies between {above!r} and {below!r}")
        pivots = [above, *rows.keys, below]
        for i, child_path in enumerate(rows.children):
            require(FILES["node"].fullmatch(child_path), f"{child_path!r} is the path of a node")
            names.check_spread(child_path)
            names.check_stored_path(child_path, self.definition["file_path_max_size_bytes"])
            child = self.lakehouse.read_node(child_path, self.order)
            require(child.height == rows.height - 1, f"{child_path} is one lower than its parent")
            self._visit(child_path, path, child, pivots[i], pivots[i + 1], visited)

    @cached_property
    def locations(self) -> dict[str, str]:
        """Key to location of everything that is there: each node's messages over its rows over its children."""
        effective: dict[str, str | None] = {}
        for node in sorted(self.nodes, key=lambda node: node.rows.height):
            effective.update(zip(node.rows.keys, node.rows.values, strict=True))
            effective.update(node.rows.last_messages())
        return {key: value for key, value in effective.items() if value is not None}

    def search(self, key: str) -> str | None:
        """One key, walking down: the last message, the own row, the child."""
        path = self.path
        while True:
            rows = self.lakehouse.read_node(path, self.order)
            for message in reversed(rows.buffer):
                if message.key == key:
                    return message.value
            if key in rows.keys:
                return rows.values[rows.keys.index(key)]
            if not rows.children:
                return None
            path = rows.children[sum(pivot.encode() < key.encode() for pivot in rows.keys)]

    @cached_property
    def objects(self) -> dict[ObjectName, str]:
        """Object to the location of its definition."""
        return {names.decode_key(key, self.sizes): location for key, location in self.locations.items()}

    def definition_of(self, name: ObjectName) -> dict[str, Any]:
        location = self.objects[name]
        data = self.lakehouse.files.get(location)
        return object_definition(name.kind, self.inline_definitions[location] if data is None else data)

    # Rules

    def check(self) -> None:
        """What must hold in this version alone. Raises `BrokenRule`."""
        self._check_root()
        for key, location in self.locations.items():
            require(self.search(key) == location, f"walking down to {key!r} finds what merging finds")
        for name, location in self.objects.items():
            self._check_object(name, location)

    def _check_root(self) -> None:
        system = self.root.system
        require(system["version"] == str(self.number), "the root knows its version")
        require(uuid.UUID(system["commit_id"]).version == 4, "a commit id is a version 4 UUID")
        require(FILES["lakehouse definition"].fullmatch(self.definition_path), "the path of the lakehouse definition")
        expected = names.root_path(self.number - 1) if self.number else None
        require(system.get("previous_root") == expected, "the root knows the root before it")
        require(system.get("rollback_from_root") in (None, expected), "a rollback starts from the root before it")
        for node in self.nodes:
            require(int(node.rows.system["created_at_millis"]) > 0, "every node knows when it was made")
            if node.parent is not None:
                require("lakehouse_def" not in node.rows.system, "only a root names the lakehouse definition")
        for transaction in self.transactions:
            fields = set(transaction) - {"summary"}
            require(fields == TRANSACTION_FIELDS, f"the fields of a transaction, not {sorted(transaction)}")
            summary = transaction.get("summary", "-")
            require(0 < len(summary.encode()) <= 300 and summary.isprintable(), f"one short line, not {summary!r}")
            require(0 <= transaction["began_at_version"] < self.number, "a transaction began before its version")
        identifiers = {transaction["id"] for transaction in self.transactions}
        own = [message.txn in identifiers for message in self.root.buffer]
        require(own == sorted(own), "the rows of the newest commit are the tail of the root's buffer")

    def _check_object(self, name: ObjectName, location: str) -> None:
        names.check_stored_path(location, self.definition["file_path_max_size_bytes"])
        if name.kind == "transaction":
            require(location.startswith(f"_txn/{name.name}/"), f"{location} is the record of transaction {name.name}")
            # An expiry removes records, and a saved state that is one before the key in the newest version.
            is_state = int(location.rpartition("/")[2].removesuffix(".binpb")) < 2**63
            is_kept = self.lakehouse.boundary == 0 or not (is_state or self.number < self.lakehouse.latest())
            require(location in self.lakehouse.files or not is_kept, f"the record of {name.name} is there")
            return
        is_there = location in self.lakehouse.files or location in self.inline_definitions
        require(is_there, f"the definition of {name} is there")
        require(FILES["definition"].fullmatch(location), f"{location!r} is the path of a definition")
        names.check_spread(location, names.original_definition_path(name, location))
        definition = self.definition_of(name)
        require(uuid.UUID(definition["id"]), f"{name} has an id")
        if name.kind != "namespace":
            require(ObjectName("namespace", name.namespace, "") in self.objects, f"the namespace of {name} exists")
            other = name._replace(kind="view" if name.kind == "table" else "table")
            require(other not in self.objects, f"{name} shares its name with no {other.kind}")

    def _check_given_up(self, before: SeedVersion) -> None:
        """A transaction that another one gave up has a record, which was not there before, and is in no version."""
        for transaction in self.transactions:
            if (given_up := transaction["properties"].get("trinitylake.rolled-back")) is None:
                continue
            record = ObjectName("transaction", "", given_up)
            require(record in self.objects and record not in before.objects, f"{given_up} has a new record")
            require(all(one["id"] != given_up for one in self.transactions), f"{given_up} is not also committed")

    def check_against(self, before: SeedVersion) -> None:
        """What must hold between this version and the one before it. Raises `BrokenRule`."""
        created = int(self.root.system["created_at_millis"]), int(before.root.system["created_at_millis"])
        require(created[0] > created[1], "time does not run backwards")
        require(self.order == before.order and self.sizes == before.sizes, "what shapes the tree is fixed for life")
        last = before.root.system.get("last_rollback")
        if "rollback_from_root" in before.root.system:
            last = str(before.number)
        if "rollback_from_root" in self.root.system:
            last = str(self.number)
        require(self.root.system.get("last_rollback") in (None, last), "the root names the last rollback")
        self._check_given_up(before)
        if "rollback_from_root" in self.root.system:
            return
        identifiers = {transaction["id"] for transaction in self.transactions}
        told = {message.key: message.value for message in self.root.buffer if message.txn in identifiers}
        changed = {
            key: self.locations.get(key)
            for key in self.locations.keys() | before.locations.keys()
            if self.locations.get(key) != before.locations.get(key)
        }
        require(changed.items() <= told.items(), "the root's buffer tells everything that its version changed")
