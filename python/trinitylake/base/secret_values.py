"""Options whose values are secrets, and references to secrets: `env:NAME` and `@FILE`.

All users of a machine can see its command lines, and the options of an engine appear on its pages and in its logs. With
a reference, the secret itself appears in neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trinitylake.errors import InvalidArgument

#: An option is a secret if its name, without separators, contains one of these words.
_SECRET_NAME = re.compile(
    "accesskey|accountkey|apikey|authorization|connectionstring|credential|customerkey|cryptionkey|passphrase"
    "|passwd|password|privatekey|saskey|secret|sessionkey|sharedkey|signature|ssekey"
)
_PASSWORD_IN_URI = re.compile(r"://[^/?#@\s]*:[^/?#@\s]+@")
_SEPARATORS = str.maketrans("", "", "_-.")
_FILE, _VARIABLE = "@", "env:"
#: A larger file is probably not a secret.
_FILE_MAX_SIZE_BYTES = 1 << 16


def is_secret_name(name: str) -> bool:
    """Whether options with this name are secrets: keys, passwords, tokens, signatures."""
    name = name.lower()
    letters = name.translate(_SEPARATORS)
    return (
        any(part.translate(_SEPARATORS).endswith("token") for part in name.split("."))
        or letters == "sig"
        or name.startswith("x-amz-")
        or _SECRET_NAME.search(letters) is not None
    )


def is_secret(name: str, value: str) -> bool:
    """Whether an option is a secret: by its name, or because its value is a URI with a password."""
    return is_secret_name(name) or _PASSWORD_IN_URI.search(value) is not None


def is_reference(value: str) -> bool:
    return value.startswith((_FILE, _VARIABLE))


def with_values_read(options: Mapping[str, str]) -> dict[str, str]:
    """Resolve references to secrets in options; white space around the content of a file is removed.

    Raises `InvalidArgument` for a variable that is not set and for a file that cannot be read.
    """
    return {name: _read(name, value) for name, value in options.items()}


def _read(name: str, value: str) -> str:
    if value.startswith(_VARIABLE):
        variable = value.removeprefix(_VARIABLE)
        if (found := os.environ.get(variable)) is None:
            raise InvalidArgument(f"option {name}: the environment variable {variable!r} is not set")
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
