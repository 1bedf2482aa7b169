"""Pickling of handles: a pickle contains root, version and options, from which unpickling opens the handle again.

Every handle contains the storage of its lakehouse, and these rules apply to the options of a pickled `_core.Storage`:

- A secret that is the value of an environment variable is replaced by the name of the variable.
- For any other secret pickling fails, unless the handle was opened with `pickle_secrets=True`.
- All other options are pickled as they are.
"""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, NoReturn, TypeAlias

from trinitylake import _core
from trinitylake.base.secret_values import is_secret, is_secret_name
from trinitylake.errors import InvalidArgument, UnsupportedVersion

#: Pickles with another format number are refused.
PICKLE_FORMAT = 1

Durability: TypeAlias = Literal["fsync", "none"]
#: The value of an option, or a tuple of the environment variable that contains it.
PickledOption: TypeAlias = str | tuple[str]

#: Digests of the secrets that may be pickled.
_ALLOWED: set[bytes] = set()


def allow_secrets(options: Mapping[str, str] | None) -> None:
    """Allow pickles to contain the secrets in these options, in this process and in processes that unpickle them."""
    _ALLOWED.update(_digest(value) for name, value in (options or {}).items() if is_secret(name, value))


def pickled_options(options: Mapping[str, str]) -> dict[str, PickledOption]:
    """Replace secrets by the names of the environment variables that contain them.

    Raises `InvalidArgument` for a secret that is neither in a variable nor allowed.
    """
    return {name: _pickled(name, value) for name, value in options.items()}


def unpickled_options(options: Mapping[str, PickledOption]) -> dict[str, str]:
    """The inverse of `pickled_options`. Raises `InvalidArgument` for a variable that this process does not have."""
    allow_secrets({name: value for name, value in options.items() if isinstance(value, str)})
    return {name: value if isinstance(value, str) else _read(name, value[0]) for name, value in options.items()}


def refuse_transaction(id: str) -> NoReturn:
    """Raise `InvalidArgument`, because a transaction cannot be pickled."""
    _refuse(f"transaction {id}", repr(id))


def refuse_staged_table(name: str) -> NoReturn:
    """Raise `InvalidArgument`, because a table of an open transaction cannot be pickled."""
    _refuse(f"table {name} in an open transaction", "id")


def _refuse(what: str, id: str) -> NoReturn:
    raise InvalidArgument(
        f"{what} cannot be pickled: a transaction belongs to the process that began it. To continue it in another "
        f"process, call its save() here and lake.resume({id}) there"
    )


class StorageForTasks:
    """A storage that is pickled with all options, also with secrets, for tasks on an engine's own executors."""

    def __init__(self, storage: _core.Storage) -> None:
        self.storage = storage

    def __reduce__(self) -> tuple[Callable[..., StorageForTasks], tuple[Any, ...]]:
        return _for_tasks, self.storage.__getnewargs__()


def _for_tasks(*arguments: Any) -> StorageForTasks:
    return StorageForTasks(_core.Storage(*arguments))


def _pickled(name: str, value: str) -> PickledOption:
    if not is_secret(name, value):
        return value
    variables = [one for one, content in os.environ.items() if content == value and is_secret_name(one)]
    if variables:
        same_name = [one for one in variables if one.lower() == name.lower()]
        return (min(same_name or variables),)
    if _digest(value) in _ALLOWED:
        return value
    raise InvalidArgument(
        f"a handle with the option {name} cannot be pickled: its value is a secret that no environment variable "
        "contains. Set a variable such as AWS_SECRET_ACCESS_KEY in both processes, or open the lakehouse with "
        "pickle_secrets=True, which writes the secret into pickles"
    )


def _read(name: str, variable: str) -> str:
    if (value := os.environ.get(variable)) is None:
        raise InvalidArgument(
            f"cannot unpickle a handle: its option {name} is in the environment variable {variable!r} of the process "
            "that pickled it, and this process has no such variable"
        )
    return value


def _digest(value: str) -> bytes:
    return sha256(value.encode("utf-8", "surrogatepass")).digest()


def _reduced(storage: _core.Storage) -> tuple[Callable[..., _core.Storage], tuple[Any, ...]]:
    root, options, durability, other_roots = storage.__getnewargs__()
    pickled = None if options is None else pickled_options(options)
    return opened_storage, (PICKLE_FORMAT, root, pickled, durability, list(other_roots))


def opened_storage(
    pickle_format: int,
    root: str = "",
    options: Mapping[str, PickledOption] | None = None,
    durability: Durability | None = None,
    other_roots: Sequence[str] = (),
    *_: Any,
) -> _core.Storage:
    """Unpickle a storage. Raises `UnsupportedVersion` for a pickle with another format number."""
    if pickle_format != PICKLE_FORMAT:
        raise UnsupportedVersion(
            f"this pickle has format {pickle_format} and this release reads format {PICKLE_FORMAT}: use the same "
            "release of trinitylake in all processes"
        )
    return _core.Storage(root, None if options is None else unpickled_options(options), durability, other_roots)


def _reduced_lakehouse(core: _core.Lakehouse) -> tuple[Callable[..., _core.Lakehouse], tuple[Any, ...]]:
    return _core.Lakehouse.open, (core.storage,)


def _refused(core: _core.Transaction) -> NoReturn:
    refuse_transaction(core.id)


copyreg.pickle(_core.Storage, _reduced)
copyreg.pickle(_core.Lakehouse, _reduced_lakehouse)
copyreg.pickle(_core.Transaction, _refused)
