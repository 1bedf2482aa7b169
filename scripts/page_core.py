"""Compiles what the page of files reads a lakehouse with: `make page-wasm`.

    python scripts/page_core.py [--check]

The crate `trinitylake-browser` becomes WebAssembly, is made smaller by binaryen and stored compressed beside the page,
so that nobody else needs Rust's target for browsers. A record beside it says what it was made of. With `--check`
nothing is compiled: the sources are held against the record, and whoever changed one is told.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CRATE = "trinitylake-browser"
TARGET = "wasm32-unknown-unknown"
FOLDER = ROOT / "target" / "wasm"
PAGE = ROOT / "python" / "trinitylake" / "page"
CORE = PAGE / "ui" / "files" / "core.bin"
RECORD = PAGE / "core.json"
SCHEMA = "proto/trinitylake.proto"

#: As small as it gets. No path of this machine, and nothing that differs from one time to the next, is in the result.
PROFILE = {
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "1",
    "CARGO_PROFILE_RELEASE_DEBUG": "false",
    "CARGO_PROFILE_RELEASE_LTO": "fat",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "z",
    "CARGO_PROFILE_RELEASE_PANIC": "abort",
    "CARGO_PROFILE_RELEASE_STRIP": "true",
    "CONST_RANDOM_SEED": "trinitylake",
}
#: What the compiler emits by default, which browsers have had since 2021.
FEATURES = ("bulk-memory", "multivalue", "mutable-globals", "nontrapping-float-to-int", "reference-types", "sign-ext")


def main() -> None:
    """Compile, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only hold the sources against the record")
    if parser.parse_args().check:
        if problems := stale():
            sys.exit(
                "\n".join([*problems, "Run `make page-wasm`, which needs `rustup target add " + TARGET + "` and npm."])
            )
        return
    small = made_smaller(compiled())
    CORE.write_bytes(gzip.compress(small, 9, mtime=0))
    RECORD.write_text(json.dumps(record(small), indent=2) + "\n")
    print(f"{CORE.relative_to(ROOT)}: {CORE.stat().st_size:,} bytes, {len(small):,} without compression")


def compiled() -> Path:
    """The module as the compiler makes it."""
    cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    flags = f"--remap-path-prefix={cargo_home}=cargo --remap-path-prefix={ROOT}=trinitylake"
    environment = {**os.environ, **PROFILE, "CARGO_TARGET_DIR": str(FOLDER), "RUSTFLAGS": flags}
    command = ["cargo", "rustc", "--locked", "--release", "--package", CRATE, "--lib", "--crate-type", "cdylib"]
    subprocess.run([*command, "--target", TARGET], cwd=ROOT, env=environment, check=True)
    return FOLDER / TARGET / "release" / f"{CRATE.replace('-', '_')}.wasm"


def made_smaller(module: Path) -> bytes:
    """The same in fewer bytes."""
    folder = ROOT / "rust" / "browser"
    subprocess.run(["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    small = module.with_suffix(".small.wasm")
    flags = ["-Oz", *(f"--enable-{one}" for one in FEATURES), "--strip-debug", "--strip-producers"]
    subprocess.run(
        [folder / "node_modules/.bin/wasm-opt", *flags, "--strip-target-features", module, "-o", small], check=True
    )
    return small.read_bytes()


def record(module: bytes) -> dict[str, object]:
    """What it was made of: our files and their hash, the libraries, the compiler."""
    compiler = subprocess.run(["rustc", "--version"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sources = our_sources()
    return {
        "sha256": hashlib.sha256(module).hexdigest(),
        "compiler": compiler.strip(),
        "sources-sha256": digest(sources),
        "sources": sources,
        "libraries": libraries(),
    }


def our_sources() -> list[str]:
    """Our files that the compiler read, as it noted them, and what the messages are generated from."""
    [notes] = (FOLDER / TARGET / "release").glob(f"{CRATE.replace('-', '_')}.d")
    named = [Path(one).resolve() for line in notes.read_text().splitlines() for one in line.partition(":")[2].split()]
    inside = {one.relative_to(ROOT).as_posix() for one in named if one.is_relative_to(ROOT / "rust")}
    return sorted(inside | {SCHEMA, *(f"rust/{one.split('/')[1]}/Cargo.toml" for one in inside)})


def digest(sources: list[str]) -> str:
    """Of names and content."""
    found = hashlib.sha256()
    for one in sources:
        content = (ROOT / one).read_bytes() if (ROOT / one).is_file() else b""
        found.update(f"{one} {len(content)}\n".encode() + content)
    return found.hexdigest()


def libraries() -> list[str]:
    """The versions of all libraries that are compiled into it."""
    command = [
        "cargo",
        "tree",
        "--locked",
        "--package",
        CRATE,
        "--edges",
        "normal",
        "--target",
        TARGET,
        "--prefix",
        "none",
    ]
    tree = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {tuple(line.split()[:2]) for line in tree.splitlines() if line and not line.startswith("trinitylake-")}
    return sorted(f"{name} {version.removeprefix('v')}" for name, version in found)


def stale() -> list[str]:
    """What says that the module was made of something else than lies here."""
    told = json.loads(RECORD.read_text())
    problems = []
    if hashlib.sha256(gzip.decompress(CORE.read_bytes())).hexdigest() != told["sha256"]:
        problems.append(f"{CORE.relative_to(ROOT)} is not the file that {RECORD.relative_to(ROOT)} tells of.")
    if digest(told["sources"]) != told["sources-sha256"]:
        problems.append("Sources of the page's core have changed since it was compiled.")
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    locked = {f"{one['name']} {one['version']}" for one in packages}
    if absent := sorted(set(told["libraries"]) - locked):
        problems.append(f"Libraries of the page's core have other versions now: {', '.join(absent)}.")
    return problems


if __name__ == "__main__":
    main()
