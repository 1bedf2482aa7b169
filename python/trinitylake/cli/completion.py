"""Names of objects for the completion of shells.

Completion lists the objects of one lakehouse once, and never prints anything. After an error it offers no names. Names
that a shell would not read as one word are not offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Literal

import typer

Kind = Literal["namespace", "table", "view"]
#: Maximum number of names that are offered.
NAMES_MAX = 200
_WORD = re.compile(r"[\w.-]+")


def object_names(*kinds: Kind) -> Callable[[typer.Context, str], list[str]]:
    """Completion of an argument that names an object of one of these kinds."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                return _names(ctx, kinds, incomplete)
        except Exception:  # an error message would appear in the command line that the user types
            return []

    return complete


def _names(ctx: typer.Context, kinds: tuple[Kind, ...], incomplete: str) -> list[str]:
    from trinitylake.cli.command import open_lakehouse

    root = ctx.params.get("root") or os.environ.get("TRINITYLAKE_ROOT")
    if not root:
        return []
    state = open_lakehouse(root, ctx.params.get("options"))._state()
    namespace = incomplete.rpartition(".")[0]
    found: list[str] = []
    if "namespace" in kinds or not namespace:
        found += [name for name, _ in state.names("namespace", None)]
    for kind in kinds:
        if kind != "namespace" and namespace:
            found += [f"{one}.{name}" for one, name in state.names(kind, namespace, NAMES_MAX)]
    fitting = [name for name in found if name.startswith(incomplete) and _WORD.fullmatch(name)]
    return fitting[:NAMES_MAX]
