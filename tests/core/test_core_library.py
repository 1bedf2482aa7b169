"""The core as a shared library.

An allocator stored data of each thread in the static TLS block, which the loader shares among all libraries that are
loaded later. If other packages have used the block up, the import fails: "cannot allocate memory in static TLS block".
"""

from __future__ import annotations

import struct
from pathlib import Path

from trinitylake import _core

PT_DYNAMIC, DT_FLAGS, DF_STATIC_TLS = 2, 30, 0x10


def dynamic_entries(library: bytes) -> dict[int, int]:
    """The dynamic section of an ELF library, by tag; empty for other kinds of libraries."""
    if library[:6] != b"\x7fELF\x02\x01":
        return {}
    (start,) = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<HH", library, 0x36)
    found: dict[int, int] = {}
    for header in range(start, start + size * count, size):
        (kind,) = struct.unpack_from("<I", library, header)
        if kind == PT_DYNAMIC:
            (offset,) = struct.unpack_from("<Q", library, header + 0x08)
            (length,) = struct.unpack_from("<Q", library, header + 0x20)
            found.update(struct.iter_unpack("<QQ", library[offset : offset + length]))
    return found


def test_core_library_needs_no_static_tls() -> None:
    assert _core.__file__ is not None
    library = Path(_core.__file__).read_bytes()
    entries = dynamic_entries(library)
    assert entries or library[:4] != b"\x7fELF"
    assert not entries.get(DT_FLAGS, 0) & DF_STATIC_TLS
