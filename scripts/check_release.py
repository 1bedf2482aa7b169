"""Fail unless a tag, the version of the workspace and the changelog agree: `make check-release TAG=v0.2.0`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def faults(tag: str, version: str, changelog: str) -> list[str]:
    """Reasons why a release with this tag is not ready."""
    found = []
    if tag != f"v{version}":
        found.append(f"the tag {tag} is not that of version {version}, which Cargo.toml has: v{version}")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.M):
        found.append(f"CHANGELOG.md has no section '## {version} (year-month-day)'")
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if unreleased is None or unreleased[1].strip():
        found.append("CHANGELOG.md needs a section '## Unreleased' with nothing in it")
    return found


def main(tag: str) -> int:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    found = faults(tag, version, (ROOT / "CHANGELOG.md").read_text())
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
