"""Import hook for libraries that take longer to import than a small command takes to run, and that no command needs.

Arrow imports pandas, if it is installed, to convert the first list. PyIceberg imports the parsers of its configuration
file and of its filters.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from typing import Any

#: Modules that are executed when one of their attributes is used.
_LAZY = {"pyiceberg.expressions.parser", "strictyaml"}


class SlowImports:
    """Hides pandas, and delays modules until their first use. An entry of `sys.meta_path`."""

    def find_spec(self, name: str, path: Any = None, _: Any = None) -> ModuleSpec | None:
        """The spec of a lazy module; None for other modules. Raises `ModuleNotFoundError` for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name not in _LAZY or (spec := PathFinder.find_spec(name, path)) is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec
