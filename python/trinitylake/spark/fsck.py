"""Consistency check of one version by the executors of a Spark session.

The tree is walked down from the root until there are enough subtrees. A subtree stands for a range of keys; with the
messages that nodes above it hold for that range, it can be checked without any other part of the tree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trinitylake import core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.version_reference import find_version
from trinitylake.definitions import MANAGED, PARSERS, TableDef, parse_lakehouse_def, read_definition
from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.lakehouse.fsck import Finding, FsckReport, Versions
from trinitylake.spark.runtime import require_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake import _core
    from trinitylake.core import KeySizes

#: Subtrees for each core: they differ in size, so a core that is done takes another one.
SUBTREES_PER_CORE = 4
#: How many files one task reads at the same time.
NODE_READ_THREADS = 16
#: No tree is as high. It ends a walk that a damaged tree sends in circles.
MAX_HEIGHT = 64


@dataclass(frozen=True, order=True)
class Problem:
    """Damage of one file."""

    path: str
    message: str


@dataclass(frozen=True)
class Checked:
    """Counts of what was read, and the problems."""

    nodes: int = 0
    definitions: int = 0
    files: int = 0
    problems: frozenset[Problem] = frozenset()

    def __add__(self, other: Checked) -> Checked:
        return Checked(
            self.nodes + other.nodes,
            self.definitions + other.definitions,
            self.files + other.files,
            self.problems | other.problems,
        )


@dataclass(frozen=True)
class Subtree:
    """A node and all nodes below it, the input of a task.

    Attributes:
        path: of the node file.
        height: that the node must have; None if it is not known.
        above, below: bounds of its keys; None for no bound.
        messages: of the nodes above it, by key: the newest location, or None for a removed key.
        depth: number of nodes above it.
    """

    path: str
    height: int | None = None
    above: str | None = None
    below: str | None = None
    messages: dict[str, str | None] = field(default_factory=dict)
    depth: int = 0

    def holds(self, key: str) -> bool:
        """Whether a key is in the range. Keys are compared as bytes of UTF-8."""
        data = key.encode()
        return (self.above is None or data > self.above.encode()) and (self.below is None or data < self.below.encode())


@dataclass(frozen=True)
class Visited:
    """Children of one node, the objects that it decides about, and its problems."""

    children: list[Subtree]
    locations: dict[str, str]
    problems: list[Problem]
    is_read: bool = True


@dataclass(frozen=True)
class Checker:
    """Checks parts of one version. Tasks get a copy, so it holds no connection.

    Attributes:
        order: rows of every key table.
        sizes: of the parts of keys.
        checks_files: of tables, too.
        reads_data: read the data files of tables, with their checksums.
    """

    order: int
    sizes: KeySizes
    checks_files: bool = False
    reads_data: bool = False

    def check(self, storage: _core.Storage, subtree: Subtree) -> Checked:
        """Check a subtree, depth first, so that memory holds one path of nodes."""
        result = Checked()
        waiting = [subtree]
        with ThreadPoolExecutor(NODE_READ_THREADS) as pool:
            while waiting:
                visited = self.visit(storage, waiting.pop())
                waiting += reversed(visited.children)
                result += self.check_definitions(storage, visited, pool)
        return result

    def split(self, storage: _core.Storage, root: Subtree, wanted: int) -> tuple[Checked, list[Subtree]]:
        """Check the upper levels until at least so many subtrees are left, if there are; the result and these."""
        result, level = Checked(), [root]
        with ThreadPoolExecutor(NODE_READ_THREADS) as pool:
            while level and len(level) < wanted:
                visited = [self.visit(storage, subtree) for subtree in level]
                for one in visited:
                    result += self.check_definitions(storage, one, pool)
                level = [child for one in visited for child in one.children]
        return result, level

    def check_definitions(self, storage: _core.Storage, visited: Visited, pool: ThreadPoolExecutor) -> Checked:
        """Count a node that was visited, and check the definitions that it decides about."""
        found = pool.map(lambda named: self._definition(storage, *named), self._named(visited.locations), chunksize=1)
        problems, n_files = list(visited.problems), 0
        for one, n_of_table in found:
            problems += one
            n_files += n_of_table
        return Checked(int(visited.is_read), len(visited.locations), n_files, frozenset(problems))

    def visit(self, storage: _core.Storage, subtree: Subtree) -> Visited:
        """Read and check one node, with the messages from above in effect."""
        path = subtree.path
        try:
            node = core.read_node(storage.get(path), path)
        except TrinityLakeError as error:
            known = {key: location for key, location in subtree.messages.items() if location is not None}
            return Visited([], known, [Problem(path, str(error))], is_read=False)
        problems = []
        if subtree.height is not None and node.height is not None and node.height != subtree.height:
            problems.append(Problem(path, f"its height is {node.height} where {subtree.height} is expected"))
        if node.table.num_rows != self.order:
            problems.append(Problem(path, f"its key table has {node.table.num_rows} rows, not {self.order}"))
        if subtree.depth > MAX_HEIGHT:
            return Visited([], {}, [*problems, Problem(path, f"it is below {MAX_HEIGHT} other nodes")])
        keys: list[str] = node.table["key"].to_pylist()[1 : node.n_keys + 1]
        values: list[str] = node.table["value"].to_pylist()[1 : node.n_keys + 1]
        paths = [child for child in node.table["pnode"].to_pylist()[: node.n_keys + 1] if child is not None]
        own = dict(zip(node.buffer["key"].to_pylist(), node.buffer["value"].to_pylist(), strict=True))
        for key in [*keys, *own]:
            if not subtree.holds(key):
                problems.append(Problem(path, f"key {key!r} is outside of its range"))
        messages = {**own, **subtree.messages}
        decided = {key: messages.get(key, value) for key, value in zip(keys, values, strict=True)}
        children = self._children(subtree, node.height, keys, paths, messages)
        if not children:
            decided = {**decided, **messages}
        locations = {key: location for key, location in decided.items() if location is not None}
        return Visited(children, locations, problems)

    def _children(
        self,
        parent: Subtree,
        height: int | None,
        keys: list[str],
        paths: list[str],
        messages: Mapping[str, str | None],
    ) -> list[Subtree]:
        bounds = [parent.above, *keys, parent.below]
        below = None if height is None else height - 1
        children = [
            Subtree(path, below, bounds[position], bounds[position + 1], {}, parent.depth + 1)
            for position, path in enumerate(paths)
        ]
        pivots = [key.encode() for key in keys]
        for key, location in messages.items() if children else ():
            data = key.encode()
            position = bisect_left(pivots, data)
            if position == len(pivots) or pivots[position] != data:  # a pivot's own key is decided here
                children[position].messages[key] = location
        return children

    def _named(self, locations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Kind and location. A key that cannot be decoded is a problem of its definition."""
        for key, location in locations.items():
            try:
                yield core.decode_keys([key], self.sizes)["kind"][0].as_py(), location
            except TrinityLakeError as error:
                yield f"key {key!r}: {error}", location

    def _definition(self, storage: _core.Storage, kind: str, location: str) -> tuple[list[Problem], int]:
        """Damage of a definition and of the files of its table; and the number of checked files."""
        parse = PARSERS.get(kind)
        if parse is None:
            return [Problem(location, kind)], 0
        try:
            definition = parse(read_definition(storage, location), location)
        except TrinityLakeError as error:
            return [Problem(location, str(error))], 0
        if not (self.checks_files and isinstance(definition, TableDef) and definition.table_type == MANAGED):
            return [], 0
        return self._files(storage, definition, location)

    def _files(self, storage: _core.Storage, definition: TableDef, location: str) -> tuple[list[Problem], int]:
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.iceberg_storage.metadata import read_metadata
        from trinitylake.iceberg_storage.table_files import TableFiles
        from trinitylake.tables.table_definition import metadata_path

        io = LakehouseFileIO(storage)
        try:
            path = metadata_path(definition, location)
            metadata = read_metadata(io, io.uri_of(path), path, table_id=definition.id)
        except TrinityLakeError as error:
            return [Problem(location, str(error))], 1
        except FileNotFoundError:
            return [Problem(path, "it is missing")], 1
        found = list(TableFiles(io, metadata, reads_data=self.reads_data).found())
        return [Problem(one.path, one.problem) for one in found if one.problem], len(found) + 1


def fsck(session: SparkSession, lake: _core.Lakehouse, version: Versions, files: bool, data: bool) -> FsckReport:
    """See `LakehouseMaintenance.fsck`."""
    if version is not None and not isinstance(version, int):
        raise InvalidArgument(f"with an engine, fsck checks one version, not {version!r}")
    require_driver(session, "fsck")
    checked = find_version(lake, version)
    definition = parse_lakehouse_def(checked.definition)
    storage = lake.storage.uncached()
    checker = Checker(definition.order, core.KeySizes.of(definition), files or data, data)
    wanted = session.sparkContext.defaultParallelism * SUBTREES_PER_CORE
    result, subtrees = checker.split(storage, Subtree(core.root_path(checked.number)), wanted)
    if version is None and lake.loss is not None:
        result += Checked(problems=frozenset([Problem(*lake.loss)]))
    result = sum(_on_executors(session, storage, checker, subtrees), result)
    findings = [
        Finding("damaged", problem.path, problem.message, (checked.number,)) for problem in sorted(result.problems)
    ]
    return FsckReport(1, result.nodes, result.definitions, result.files, tuple(findings))


def _on_executors(
    session: SparkSession, storage: _core.Storage, checker: Checker, subtrees: list[Subtree]
) -> list[Checked]:
    if not subtrees:
        return []
    carried = StorageForTasks(storage)

    def check(part: Iterable[Subtree]) -> Iterator[Checked]:
        opened = carried.storage.uncached()
        for subtree in part:
            yield checker.check(opened, subtree)

    shared: Any = session.sparkContext.parallelize(subtrees, len(subtrees))
    results: list[Checked] = shared.mapPartitions(check).collect()
    return results
