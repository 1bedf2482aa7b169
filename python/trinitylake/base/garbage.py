"""Work that makes many objects which all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Do not have Python look for cycles meanwhile, in any thread.

    It does whenever so many objects came, and now and then looks at all that the process has. Where what comes stays,
    such as a plan of a thousand files, it finds nothing, and in half of the plans it takes longer than they do. For
    work that is over soon, or that makes no cycles. Whoever has switched the search off finds it so afterwards.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
