"""Bearer tokens: from a file or an argument, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from trinitylake.errors import InvalidArgument
from trinitylake.rest.security.principals import Principal

TOKEN_MIN_LENGTH = 16
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,100}")


class Tokens:
    """The tokens that open the server, and whose they are. Only their hashes are kept."""

    def __init__(self, tokens: Iterable[str], grants: Iterable[str] = ()) -> None:
        """Lines as in a file; see `from_file`. A line without grants has these. Raises `InvalidArgument`."""
        default = tuple(grants)
        self._principals = [_parsed(line, default) for line in tokens]
        if not self._principals:
            raise InvalidArgument("there is no token")

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """One token a line: `TOKEN [NAME [GRANT …]]`. Empty lines and those with `#` in front do not count.

        A token stands there as it is or as `sha256:<hex>`. Without a name it is called by the start of its hash;
        without grants (`role:pattern`) it has no rights.

        Raises `InvalidArgument` for a file that others may read, cannot be read, or holds no token.
        """
        try:
            mode = path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077 and not _is_credential(path):
                raise InvalidArgument(f"the token file {path} can be read by others: chmod 600 it")
            lines = [line.strip() for line in path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the token file {path} cannot be read: {error}") from error
        return cls(line for line in lines if line and not line.startswith("#"))

    @property
    def names(self) -> frozenset[str]:
        """Whose tokens there are."""
        return frozenset(principal.name for _, principal in self._principals)

    def known(self, token: bytes) -> Principal | None:
        """As `principal`, which never waits."""
        return self.principal(token)

    def principal(self, token: bytes) -> Principal | None:
        """Whose token it is, if anybody's. Takes the same time wherever the difference is."""
        given = _digest(token)
        found = None
        for digest, principal in self._principals:
            if hmac.compare_digest(given, digest):
                found = principal
        return found


def _is_credential(path: Path) -> bool:
    """Whether systemd made the file for this service alone; its access list then looks like a permission of groups."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return folder is not None and path.absolute().parent == Path(folder)


def _parsed(line: str, default: tuple[str, ...]) -> tuple[bytes, Principal]:
    token, *rest = line.split() or [""]
    if hashed := _HASHED.fullmatch(token):
        digest = bytes.fromhex(hashed[1])
    elif len(token) >= TOKEN_MIN_LENGTH and token.isascii() and token.isprintable():
        digest = _digest(token.encode())
    else:
        raise InvalidArgument(
            f"a token is printable ASCII without blanks, of at least {TOKEN_MIN_LENGTH} characters, "
            "or sha256: and the 64 hexadecimal digits of its hash"
        )
    name, grants = (rest[0], rest[1:]) if rest else (f"token-{digest.hex()[:8]}", [])
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"the name of a token has up to 100 of A-Z a-z 0-9 . _ @ + -, not {name!r}")
    return digest, Principal.of(name, grants or default)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
