"""Memory of a server's process: what it frees goes back to the system, and what stays is not looked through.

The C library keeps what a thread has freed in a place of that thread's, and takes larger and larger blocks from there.
Large bodies, parsed now in this thread, now in that, left their highest level in each of these places for good.
"""

from __future__ import annotations

import ctypes
import gc
import os

#: So large a block, a body or a text of one, is asked of the system by itself, and given back when it is freed.
LARGE_SIZE_BYTES = 1 << 20
#: Of glibc's `mallopt`.
_M_MMAP_THRESHOLD = -3


def give_back_large_blocks() -> bool:
    """Choose so for this process, whatever its threads; whether the C library can, as glibc does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_SIZE_BYTES) == 1


def keep_what_is_here() -> None:
    """What is in memory by now stays as long as the process: who looks for garbage does not go through it again.

    Modules and their classes are most of what there is, a few hundred thousand objects. For a process of its own: what
    is part of a circle now, and is given up later, is never freed.
    """
    gc.collect()
    gc.freeze()
