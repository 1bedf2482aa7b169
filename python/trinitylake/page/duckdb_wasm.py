"""DuckDB for browsers out of its npm package: what a page of files runs queries with, if it is given it.

It is not part of the package: 34 MB, which most pages do not need. The page has no other way to come by it, and fetches
nothing from elsewhere.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

from trinitylake.errors import InvalidArgument

PACKAGE = "@duckdb/duckdb-wasm"
#: The page speaks with its worker in messages that are the package's own business.
VERSIONS = "1.32."
_WORKER = "duckdb-browser-eh.worker.js"
_PROGRAM = "duckdb-eh.wasm"
_LARGEST = 200 << 20


def files_of_duckdb(package: Path) -> dict[str, bytes]:
    """The files that the page needs, by name: DuckDB itself, with gzip (8 MB), its worker, and what the package is.

    `package` is a folder (`node_modules/@duckdb/duckdb-wasm`, or one that has `node_modules`), or the `.tgz` that
    `npm pack @duckdb/duckdb-wasm` writes. Raises `InvalidArgument` for anything else, and for versions with which
    nobody has tried the page.
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
    # The name of a map for debuggers, which would be fetched and is not there.
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
