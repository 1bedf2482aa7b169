"""Import hook of the command line and of worker processes: hides or delays modules that they do not need.

If pandas is installed, Arrow imports it when it converts its first list. PyIceberg imports the parsers of its
configuration file and of its filters. `pyarrow.compute` creates 300 functions, and PyIceberg 190 pydantic models, most
of which only writers need. Each of these takes longer than a small command; the import of pandas takes half of the time
of a first query.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

#: Modules that are executed at the first access to one of their attributes.
_LAZY = {"pyarrow.compute", "pyiceberg.expressions.parser", "strictyaml"}
_lock = RLock()


class ImportHook:
    """An entry of `sys.meta_path` that hides pandas, and delays modules and models until their first use."""

    def find_spec(self, name: str, path: Any = None, _: Any = None) -> ModuleSpec | None:
        """The spec of a lazy module; None for other modules. Raises `ModuleNotFoundError` for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "pyiceberg.types":
            _delay_models()
        if name not in _LAZY or (spec := PathFinder.find_spec(name, path)) is None or spec.loader is None:
            return None
        return ModuleSpec(name, _LazyLoader(spec), origin=spec.origin)  # type: ignore[arg-type]


def _delay_models() -> None:
    """Let PyIceberg's models build their validators at first use. Only pydantic 2.14 or newer does this under a
    lock.
    """
    import pydantic
    from pyiceberg.typedef import IcebergBaseModel, IcebergRootModel

    if tuple(map(int, pydantic.VERSION.split(".")[:2])) >= (2, 14):
        for base in (IcebergBaseModel, IcebergRootModel):
            base.model_config["defer_build"] = True


class _LazyLoader:
    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return _LazyModule(self._spec)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do: `_LazyModule` executes the module at the first access."""


class _LazyModule(ModuleType):
    """A module that the first access to an attribute executes.

    If several threads access it, it is executed only once, unlike with `importlib.util.LazyLoader`.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self._unused: ModuleSpec | None = spec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes that the import system looks for
            raise AttributeError(name)
        with _lock:
            if (spec := self._unused) is not None and spec.loader is not None:
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
                self.__dict__.update(vars(module), _unused=None)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
