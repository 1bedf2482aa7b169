"""Names of objects for the completion of shells.

Fast and silent: one listing of one lakehouse, nothing else; whatever goes wrong, there are no names. Names that a shell
could take for something else than a word are left out, since they would be put on the command line as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Literal

import typer

Kind = Literal["namespace", "table", "view"]
#: More are not shown.
NAMES_MAX = 200
_WORD = re.compile(r"[\w.-]+")


def object_names(*kinds: Kind) -> Callable[[typer.Context, str], list[str]]:
    """A completion for an argument that names an object of one of these kinds."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                return _names(ctx, kinds, incomplete)
        except Exception:  # who presses the tabulator wants names or nothing
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
