"""Reader of a whole lakehouse, file by file: its versions, their trees and objects, and the rules for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from conformance import name as names
from conformance.definition import lakehouse_definition, object_definition
from conformance.name import FILES, ObjectName, Sizes
from conformance.node import NodeRows, read_node, read_system_rows
from conformance.rule import require


@dataclass
class VisitedNode:
    """A node in the tree of one version."""

    path: str
    parent: str | None
    rows: NodeRows
    #: Distance to the leaves.
    height: int


class SeedLakehouse:
    """Lakehouse as a mapping of paths below the root to content. Files that no version references are not read."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._nodes: dict[tuple[str, int], NodeRows] = {}

    def has_version(self, version: int) -> bool:
        return names.root_path(version) in self.files

    def latest(self) -> int:
        """The latest version: the highest number of consecutive roots from the hint on, or from 0 without a hint."""
        version = int(self.files.get(names.HINT, b"0").decode())
        while self.has_version(version + 1):
            version += 1
        return version

    def versions(self) -> list[SeedVersion]:
        """All versions, oldest first, each checked alone and against the previous version."""
        versions = [SeedVersion(self, self.latest())]
        while (previous := versions[-1].root.system.get("previous_root")) is not None and previous in self.files:
            versions.append(SeedVersion(self, names.root_version(previous)))
        versions.reverse()
        for version in versions:
            version.check()
        for before, after in pairwise(versions):
            after.check_against(before)
        return versions

    def read_node(self, path: str, order: int) -> NodeRows:
        """The rows of a node file. Each file is read once, because node files never change."""
        require(path in self.files, f"the node {path} exists")
        if (path, order) not in self._nodes:
            self._nodes[path, order] = read_node(self.files[path], order)
        return self._nodes[path, order]


class SeedVersion:
    """A version: its root, tree and objects."""

    def __init__(self, lakehouse: SeedLakehouse, number: int) -> None:
        self.lakehouse = lakehouse
        self.number = number
        self.path = names.root_path(number)

    @cached_property
    def definition_path(self) -> str:
        """Path of the lakehouse definition, from the system rows, which can be read without the order."""
        return read_system_rows(self.lakehouse.files[self.path])["lakehouse_def"]

    @cached_property
    def definition(self) -> dict[str, Any]:
        require(self.definition_path in self.lakehouse.files, "the lakehouse definition exists")
        return lakehouse_definition(self.lakehouse.files[self.definition_path])

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
    def nodes(self) -> list[VisitedNode]:
        """All nodes, parents before children. Checks the rules between nodes."""
        visited: list[VisitedNode] = []
        self._visit(self.path, None, self.root, None, None, visited)
        paths = [node.path for node in visited]
        require(len(set(paths)) == len(paths), "no node has two parents")
        return visited

    @property
    def height(self) -> int:
        return self.nodes[0].height

    def _visit(
        self,
        path: str,
        parent: str | None,
        rows: NodeRows,
        above: str | None,
        below: str | None,
        visited: list[VisitedNode],
    ) -> int:
        node = VisitedNode(path, parent, rows, 0)
        visited.append(node)
        for key in [*rows.keys, *(message.key for message in rows.buffer)]:
            inside = (above is None or key.encode() > above.encode()) and (
                below is None or key.encode() < below.encode()
            )
            require(inside, f"{path}: {key!r} lies between {above!r} and {below!r}")
        require(int(rows.system["created_at_millis"]) > 0, "every node knows when it was created")
        pivots = [above, *rows.keys, below]
        heights = set()
        for i, child_path in enumerate(rows.children):
            require(FILES["node"].fullmatch(child_path), f"{child_path!r} is the path of a node")
            names.check_optimized(child_path)
            names.check_stored_path(child_path, self.definition["file_path_max_size_bytes"])
            child = self.lakehouse.read_node(child_path, self.order)
            require("lakehouse_def" not in child.system, "only a root names the lakehouse definition")
            heights.add(self._visit(child_path, path, child, pivots[i], pivots[i + 1], visited))
        require(len(heights) <= 1, f"all leaves below {path} have the same depth")
        node.height = 1 + heights.pop() if heights else 0
        return node.height

    @cached_property
    def locations(self) -> dict[str, str]:
        """Messages take precedence over rows of the node, and these over its children."""
        effective: dict[str, str | None] = {}
        for node in sorted(self.nodes, key=lambda node: node.height):
            effective.update(zip(node.rows.keys, node.rows.values, strict=True))
            effective.update(node.rows.last_messages())
        return {key: value for key, value in effective.items() if value is not None}

    def search(self, key: str) -> str | None:
        """The location of a key, found from the root down: the last message, then the row, then the child."""
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
        """Locations of definitions by object."""
        decoded = ((names.decode_key(key, self.sizes), location) for key, location in self.locations.items())
        return {name: location for name, location in decoded if name is not None}

    def definition_of(self, name: ObjectName) -> dict[str, Any]:
        return object_definition(name.kind, self.lakehouse.files[self.objects[name]])

    def check(self) -> None:
        """Check the rules for a single version. Raises `BrokenRule`."""
        require(FILES["root"].fullmatch(self.path), f"{self.path!r} is the path of a root")
        require(FILES["lakehouse definition"].fullmatch(self.definition_path), "the path of the lakehouse definition")
        for key, location in self.locations.items():
            require(self.search(key) == location, f"walking down to {key!r} finds what merging finds")
        for name, location in self.objects.items():
            self._check_object(name, location)

    def _check_object(self, name: ObjectName, location: str) -> None:
        names.check_stored_path(location, self.definition["file_path_max_size_bytes"])
        require(location in self.lakehouse.files, f"the definition of {name} exists")
        require(FILES["definition"].fullmatch(location), f"{location!r} is the path of a definition")
        require(location[24:].startswith(f"{name.kind}-"), f"{location!r} is the path of a {name.kind}")
        names.check_optimized(location, names.original_definition_path(name, location))
        self.definition_of(name)
        if name.kind != "namespace":
            require(ObjectName("namespace", name.namespace, "") in self.objects, f"the namespace of {name} exists")

    def check_against(self, before: SeedVersion) -> None:
        """Check the rules for this version and the previous version. Raises `BrokenRule`."""
        require(self.root.system.get("previous_root") == before.path, "the root names the root before it")
        require(self.number == before.number + 1, f"versions have no gaps: {before.number}, {self.number}")
        rolled_back = self.root.system.get("rollback_from_root")
        require(rolled_back in (None, before.path), "a rollback starts from the root before it")
        if rolled_back is None and not self.is_rebuilt():
            self._check_newest_messages(before)

    def is_rebuilt(self) -> bool:
        """Whether the version has a newly built tree, and therefore no messages in the buffer of its root.

        Only here does this reader use an extension, because the original documents have no bulk changes.
        """
        committed = json.loads(self.root.system.get("committed_txns", "[]"))
        operations = {one["properties"].get("trinitylake.operation") for one in committed}
        return not operations.isdisjoint({"register", "export", "repair"})

    def _check_newest_messages(self, before: SeedVersion) -> None:
        """Check that the messages of the latest transactions are the last rows of the root's buffer."""
        changed = {
            key: self.locations.get(key)
            for key in self.locations.keys() | before.locations.keys()
            if self.locations.get(key) != before.locations.get(key)
        }
        require(
            changed.items() <= self.root.last_messages().items(), "the root's buffer has every change of its version"
        )
