"""What a pickle of a handle holds, and how the handle is opened again in the process that it arrives in.

A handle is opened again by root, version and options; nothing that is open travels. All handles hold the storage of
their lakehouse, so what becomes of the options is decided here alone, when a `_core.Storage` is pickled:

- A secret that an environment variable has is left out. The pickle names the variable, which is read on arrival.
- Any other secret stops the pickle, unless the handle was opened with `pickle_secrets=True`: then it stands in there.
- All other options travel.
"""

from __future__ import annotations

import copyreg
import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NoReturn, TypeAlias

from trinitylake import _core
from trinitylake.base.secret_values import is_secret_name
from trinitylake.errors import InvalidArgument, UnsupportedVersion

#: What a pickle looks like. One of another number is refused, rather than read as something else.
PICKLE_FORMAT = 1

Durability: TypeAlias = Literal["fsync", "none"]
#: The value of an option, or the environment variable that has it.
Travelling: TypeAlias = str | tuple[str]

#: Digests of the secrets that somebody has allowed to be pickled.
_ALLOWED: set[bytes] = set()
_PASSWORD_IN_URL = re.compile(r"://[^/?#@]*:[^/?#@]+@")


def allow_secrets(options: Mapping[str, str] | None) -> None:
    """From now on, the secrets among these options may stand in pickles of this process, and of those they reach."""
    _ALLOWED.update(_digest(value) for name, value in (options or {}).items() if _is_secret(name, value))


def travelling(options: Mapping[str, str]) -> dict[str, Travelling]:
    """Options as they may be written into a pickle: secrets as the names of the variables that have them.

    Raises `InvalidArgument` for a secret that no variable has, and that nobody has allowed to be pickled.
    """
    return {name: _travelling(name, value) for name, value in options.items()}


def arrived(options: Mapping[str, Travelling]) -> dict[str, str]:
    """The inverse of `travelling`, in the process that a pickle arrives in.

    Raises `InvalidArgument` for a variable that is not set here.
    """
    allow_secrets({name: value for name, value in options.items() if isinstance(value, str)})
    return {name: value if isinstance(value, str) else _read(name, value[0]) for name, value in options.items()}


def refuse_transaction(id: str) -> NoReturn:
    """Raises `InvalidArgument`: a transaction cannot be pickled."""
    _refuse(f"transaction {id}", repr(id))


def refuse_staged_table(name: str) -> NoReturn:
    """Raises `InvalidArgument`: what belongs to a transaction cannot be pickled either."""
    _refuse(f"table {name} in an open transaction", "id")


def _refuse(what: str, id: str) -> NoReturn:
    raise InvalidArgument(
        f"{what} cannot be pickled: a transaction belongs to the process that began it. To go on in another one, call "
        f"its save() here and lake.resume({id}) there"
    )


class StorageForTasks:
    """A storage whose pickle holds all of its options, secrets too: for what an engine sends to its own executors."""

    def __init__(self, storage: _core.Storage) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Callable[..., StorageForTasks], tuple[Any, ...]]:
        return _for_tasks, self.storage.__getnewargs__()


def _for_tasks(*arguments: Any) -> StorageForTasks:
    return StorageForTasks(_core.Storage(*arguments))


def _travelling(name: str, value: str) -> Travelling:
    if not _is_secret(name, value):
        return value
    variables = [one for one, held in os.environ.items() if held == value and is_secret_name(one)]
    if variables:
        same_name = [one for one in variables if one.lower() == name.lower()]
        return (min(same_name or variables),)
    if _digest(value) in _ALLOWED:
        return value
    raise InvalidArgument(
        f"a handle with the option {name} cannot be pickled: its value is a secret, and no environment variable has "
        "it: set a variable such as AWS_SECRET_ACCESS_KEY here and where the pickle is read, or open the lakehouse "
        "with pickle_secrets=True, which writes the secret into pickles"
    )


def _read(name: str, variable: str) -> str:
    if (value := os.environ.get(variable)) is None:
        raise InvalidArgument(
            f"a handle cannot be opened again here: its option {name} is in the environment variable {variable!r} of "
            "the process that pickled it, and this process has no such variable"
        )
    return value


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or _PASSWORD_IN_URL.search(value) is not None


def _digest(value: str) -> bytes:
    return sha256(value.encode("utf-8", "surrogatepass")).digest()


def _reduced(storage: _core.Storage) -> tuple[Callable[..., _core.Storage], tuple[Any, ...]]:
    root, options, durability, other_roots = storage.__getnewargs__()
    kept = None if options is None else travelling(options)
    return opened_storage, (PICKLE_FORMAT, root, kept, durability, list(other_roots))


def opened_storage(
    pickle_format: int,
    root: str = "",
    options: Mapping[str, Travelling] | None = None,
    durability: Durability | None = None,
    other_roots: Sequence[str] = (),
    *_: Any,
) -> _core.Storage:
    """What is called on arrival. Raises `UnsupportedVersion` for a pickle of a release with another form of them."""
    if pickle_format != PICKLE_FORMAT:
        raise UnsupportedVersion(
            f"this pickle of a handle has the form {pickle_format}, and this release knows {PICKLE_FORMAT}: use the "
            "same release of trinitylake in all processes"
        )
    return _core.Storage(root, None if options is None else arrived(options), durability, other_roots)


def _reduced_lakehouse(core: _core.Lakehouse) -> tuple[Callable[..., _core.Lakehouse], tuple[Any, ...]]:
    return _core.Lakehouse.open, (core.storage,)


def _refused(core: _core.Transaction) -> NoReturn:
    refuse_transaction(core.id)


copyreg.pickle(_core.Storage, _reduced)
copyreg.pickle(_core.Lakehouse, _reduced_lakehouse)
copyreg.pickle(_core.Transaction, _refused)
