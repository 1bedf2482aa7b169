"""Arrow without pandas, for a process that makes no frame of it.

Where pandas is installed, Arrow imports it when it is given its first value of Python, to ask whether that is an array
of pandas. It takes more time than all that such a process loads besides.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _Absent(MetaPathFinder):
    """Stands before those who would find it."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_out_pandas() -> None:
    """From now on, this process is one in which pandas is not installed. To be called before Arrow is used."""
    sys.meta_path.insert(0, _Absent())
