"""Import hook of the command line and of worker processes: hides or delays slow libraries that they do not need.

If pandas is installed, Arrow imports it to convert its first list. PyIceberg imports the parsers of its configuration
file and of its filters. Each of these imports takes longer than a
small command takes to run, and pandas half of the time of a first query.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any

#: Modules that are executed at the first access to one of their attributes.
_LAZY = {"pyiceberg.expressions.parser", "strictyaml"}


class ImportHook:
    """Hides pandas, and delays modules until their first use. An entry of `sys.meta_path`."""

    def find_spec(self, name: str, path: Any = None, _: Any = None) -> ModuleSpec | None:
        """The spec of a lazy module; None for other modules. Raises `ModuleNotFoundError` for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in _LAZY or (spec := PathFinder.find_spec(name, path)) is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec
