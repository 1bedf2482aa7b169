"""DuckDB for browsers, from its npm package: it runs the SQL queries of a page that reads files.

`trinitylake` does not contain DuckDB for browsers, because most pages do not need its 34 MB. The page needs a copy,
because it loads nothing from other origins.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

from trinitylake.errors import InvalidArgument

PACKAGE = "@duckdb/duckdb-wasm"
#: Supported versions: the messages between page and worker are internal to the package, and can change.
VERSIONS = "1.32."
_WORKER = "duckdb-browser-eh.worker.js"
_PROGRAM = "duckdb-eh.wasm"
_LARGEST = 200 << 20


def files_of_duckdb(package: Path) -> dict[str, bytes]:
    """The files that the page needs, by name: DuckDB (8 MB with gzip), its worker, and a description of the package.

    `package` is a folder (`node_modules/@duckdb/duckdb-wasm`, or the parent of `node_modules`), or the `.tgz` of
    `npm pack @duckdb/duckdb-wasm`. Raises `InvalidArgument` for other files and for untested versions.
    """
    read = _of_archive(package) if package.is_file() else _of_folder(package)
    try:
        described = json.loads(read("package.json"))
        name, version = str(described["name"]), str(described["version"])
    except (OSError, EOFError, KeyError, TypeError, ValueError, tarfile.TarError) as error:
        raise InvalidArgument(f"{package} is not the npm package {PACKAGE}, as a folder or a .tgz") from error
    if name != PACKAGE or not version.startswith(VERSIONS):
        raise InvalidArgument(f"{package} is {name} {version}; the page runs queries by {PACKAGE} {VERSIONS}x")
    try:
        program, worker = read(f"dist/{_PROGRAM}"), read(f"dist/{_WORKER}")
    except (OSError, EOFError, KeyError, tarfile.TarError) as error:
        raise InvalidArgument(f"{package} lacks dist/{_PROGRAM} or dist/{_WORKER}, or they are damaged") from error
    # Remove the reference to a source map, because the page does not have the source map.
    script = worker.partition(b"\n//# sourceMappingURL=")[0] + b"\n"
    known = {key: described[key] for key in ("name", "version", "license", "repository") if key in described}
    return {
        "duckdb-eh.bin": gzip.compress(program, mtime=0),
        _WORKER: script,
        "package.txt": json.dumps(known, indent=2).encode() + b"\n",
    }


def _of_folder(package: Path) -> Callable[[str], bytes]:
    below = package / "node_modules" / PACKAGE
    folder = below if below.is_dir() else package
    return lambda name: (folder / name).read_bytes()


def _of_archive(package: Path) -> Callable[[str], bytes]:
    def read(name: str) -> bytes:
        with tarfile.open(package) as archive:
            member = archive.getmember(f"package/{name}")
            found = archive.extractfile(member) if member.size <= _LARGEST else None
            if found is None:
                raise KeyError(name)
            return found.read()

    return read
