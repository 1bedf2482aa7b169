"""The command line application with all of its commands, which register themselves as they are imported."""

from __future__ import annotations

from trinitylake.cli import (
    catalog,
    compact,
    demo,
    expire,
    export,
    fsck,
    history,
    import_,
    inspect,
    relocate,
    saved_transactions,
    serve,
    snapshots,
    sql,
    undo,
    upkeep,
    vacuum,
    verify,
)
from trinitylake.cli.command import app

__all__ = [
    "app",
    "catalog",
    "compact",
    "demo",
    "expire",
    "export",
    "fsck",
    "history",
    "import_",
    "inspect",
    "relocate",
    "saved_transactions",
    "serve",
    "snapshots",
    "sql",
    "undo",
    "upkeep",
    "vacuum",
    "verify",
]
