"""Files that a garbage collection must not delete (format §7), found from the page and Iceberg's specification alone.

Nodes are read with pyarrow, metadata as JSON, manifests with PyIceberg's readers. No code of TrinityLake is used,
except the readers of this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus, read_manifest_list

from conformance import name as names
from conformance.definition import lakehouse_definition, object_definition
from conformance.node import NodeRows, read_node, read_system_rows


class _Copy(PyArrowFileIO):
    """Reads files of a copied lakehouse by their original URIs."""

    def __init__(self, local: Callable[[str], str]) -> None:
        super().__init__()
        self._at = local

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(self._at(location))


class Reachable:
    """The files below a local folder that a lakehouse references.

    Attributes:
        files: paths below the root.
    """

    def __init__(self, root: Path, uri: str | None = None) -> None:
        """Collect the files.

        Args:
            root: folder of the lakehouse.
            uri: root URI in the metadata files, without `/` at its end, if the lakehouse was copied to the folder.
        """
        self.root = root
        self._uri = f"file://{root}" if uri is None else uri
        self.files: set[str] = set()
        self._io = _Copy(self._local)
        present = {str(path.relative_to(root)) for path in root.glob("_*.arrow")}
        oldest = max((int(path.name) for path in (root / "_expired").glob("*")), default=0)
        versions = {names.root_version(path): path for path in present}
        latest = max(versions)
        self._order = self._definition(versions[latest])["order"] or 128
        kept = set(range(oldest, latest + 1))
        kept |= {names.root_version(path) for path in self._definition(versions[latest])["exported_snapshots"].values()}
        for version in kept:
            self._root(names.root_path(version))

    def _definition(self, root_path: str) -> dict[str, Any]:
        system = read_system_rows((self.root / root_path).read_bytes())
        return lakehouse_definition((self.root / system["lakehouse_def"]).read_bytes())

    def _root(self, path: str) -> None:
        system = read_system_rows((self.root / path).read_bytes())
        self.files.add(system["lakehouse_def"])
        self._node(path)

    def _node(self, path: str) -> None:
        if path in self.files:
            return
        self.files.add(path)
        rows = read_node((self.root / path).read_bytes(), self._order)
        for key, location in self._located(rows):
            if location not in self.files:
                self.files.add(location)
                if key.startswith("C==="):
                    self._table(location)
        for child in rows.children:
            self._node(child)

    @staticmethod
    def _located(rows: NodeRows) -> Iterator[tuple[str, str]]:
        newest = rows.last_messages()
        for key, location in [*zip(rows.keys, rows.values, strict=True), *newest.items()]:
            decided = newest.get(key, location)
            if decided is not None:
                yield key, decided

    def _table(self, location: str) -> None:
        table = object_definition("table", (self.root / location).read_bytes())
        if table["table_type"] != 0 or "metadata_location" not in table["format_properties"]:
            return
        path = table["format_properties"]["metadata_location"]
        if path in self.files:
            return
        self.files.add(path)
        metadata = json.loads((self.root / path).read_bytes())
        for snapshot in metadata.get("snapshots") or ():
            self._manifest_list(snapshot["manifest-list"])
        for statistics in [*(metadata.get("statistics") or ()), *(metadata.get("partition-statistics") or ())]:
            self._add(statistics["statistics-path"])

    def _manifest_list(self, uri: str) -> None:
        if not self._add(uri):
            return
        for manifest in read_manifest_list(self._io.new_input(uri)):
            if self._add(manifest.manifest_path):
                for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=False):
                    if entry.status != ManifestEntryStatus.DELETED:
                        self._add(entry.data_file.file_path)

    def _local(self, uri: str) -> str:
        return str(self.root / unquote(uri).removeprefix(f"{self._uri}/"))

    def _add(self, uri: str) -> bool:
        """Add a file below the root. Returns whether it is new."""
        path = unquote(uri)
        if not path.startswith(f"{self._uri}/"):
            return False
        path = path.removeprefix(f"{self._uri}/")
        is_new = path not in self.files
        self.files.add(path)
        return is_new


def files_below(root: Path) -> set[str]:
    """All files below the root, except the hint, the expiry boundary and saved transactions."""
    paths = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return {path for path in paths if not path.startswith(("_expired/", "_latest_hint.txt", "_txn/"))}
