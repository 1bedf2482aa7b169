"""Secrets among options: which names have one for a value, and where a value may be kept instead of being written down.

What stands on a command line is shown to everybody on the machine, and what stands among the options of an engine is
shown on its pages and kept in its logs. So a value can say where the secret is: `env:NAME`, or `@FILE`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trinitylake.errors import InvalidArgument

#: A name with one of these in it has a secret for a value, whatever stands between the letters.
_SECRET_NAMES = (
    "accesskey",
    "accountkey",
    "apikey",
    "authorization",
    "connectionstring",
    "credential",
    "customerkey",
    "cryptionkey",
    "password",
    "privatekey",
    "saskey",
    "secret",
    "sharedkey",
    "signature",
    "ssekey",
)
_SEPARATORS = str.maketrans("", "", "_-.")
_FILE, _VARIABLE = "@", "env:"
#: More is no secret, but the wrong file.
_FILE_MAX_SIZE_BYTES = 1 << 16


def is_secret_name(name: str) -> bool:
    """Whether a value with this name is a secret: a key, a password, a token, a signature."""
    name = name.lower()
    letters = name.translate(_SEPARATORS)
    return (
        any(part.translate(_SEPARATORS).endswith("token") for part in name.split("."))
        or letters == "sig"
        or name.startswith("x-amz-")
        or any(secret in letters for secret in _SECRET_NAMES)
    )


def is_reference(value: str) -> bool:
    """Whether a value says where the secret is."""
    return value.startswith((_FILE, _VARIABLE))


def with_values_read(options: Mapping[str, str]) -> dict[str, str]:
    """Options with the values that `env:NAME` and `@FILE` stand for; white space around what a file holds is no part
    of it. Raises `InvalidArgument` for a variable that is not set, and a file that cannot be read."""
    return {name: _read(name, value) for name, value in options.items()}


def _read(name: str, value: str) -> str:
    if value.startswith(_VARIABLE):
        variable = value.removeprefix(_VARIABLE)
        if (found := os.environ.get(variable)) is None:
            raise InvalidArgument(f"option {name}: the environment has no variable {variable!r}")
        return found
    if value.startswith(_FILE):
        path = Path(value.removeprefix(_FILE))
        try:
            if path.stat().st_size > _FILE_MAX_SIZE_BYTES:
                raise InvalidArgument(f"option {name}: {path} is larger than {_FILE_MAX_SIZE_BYTES} bytes")
            return path.read_text().strip()
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"option {name}: {path} cannot be read: {error}") from error
    return value
