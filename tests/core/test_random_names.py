"""Names that nobody else gives: drawn many at a time, and never twice."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from uuid import RFC_4122, UUID

from trinitylake.base.random_names import random_hex, random_uuid_text


def test_no_name_is_given_twice_by_many_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        names = [name for some in pool.map(lambda _: [random_hex() for _ in range(1000)], range(8)) for name in some]
    assert len(set(names)) == 8000
    assert {len(name) for name in names} == {32}


def test_an_id_is_a_random_uuid() -> None:
    """Its text is made without Python's class, which takes longer than all else that a name takes: what comes of it is
    a UUID of version 4 all the same, whatever the random bytes are."""
    texts = [random_uuid_text() for _ in range(1000)]
    assert len(set(texts)) == 1000
    ids = [UUID(text) for text in texts]
    assert [str(id) for id in ids] == texts
    assert {(id.version, id.variant) for id in ids} == {(4, RFC_4122)}


def test_a_forked_child_gives_names_of_its_own() -> None:
    """Bytes of the system are kept for the next names. A child that began with those of its parent would give its files
    the same names, and one of two transactions would overwrite the other's metadata."""
    random_hex()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, "".join(random_hex() for _ in range(8)).encode())
        os._exit(0)
    mine = {random_hex() for _ in range(8)}
    os.waitpid(child, 0)
    theirs = os.read(reading, 8 * 32).decode()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 8 * 32
    assert not mine & {theirs[start : start + 32] for start in range(0, len(theirs), 32)}
