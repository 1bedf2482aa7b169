"""Bearer tokens from a file or an argument. The server keeps only their hashes, and compares these in constant time.

The functions of `trinitylake token` create a token file, and list and revoke its tokens. For a token that they create,
the file contains the hash and not the token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trinitylake.errors import InvalidArgument, ObjectAlreadyExists, ObjectNotFound
from trinitylake.rest.security.authorization import Principal

TOKEN_MIN_LENGTH = 16
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,100}")
_HEAD = "# token or its hash, name, grants (role:pattern); see `trinitylake token --help`\n"


class Tokens:
    """The hashes of the bearer tokens of a server, and their principals."""

    def __init__(self, tokens: Iterable[str], grants: Iterable[str] = ()) -> None:
        """Parse lines of a token file (`from_file`). Lines without grants get `grants`. Raises `InvalidArgument`."""
        default = tuple(grants)
        self._principals = [_parsed(line, default) for line in tokens]

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """Read a token file. Each line has the form `TOKEN [NAME [GRANT …]]`. Empty lines and lines that start with `#`
        are ignored.

        A token is plain or `sha256:<hex>`. A principal without a name is named by the start of the hash. A principal
        without grants (`role:pattern`) has no rights.

        Raises `InvalidArgument` for a file that other users can read, or that cannot be read.
        """
        try:
            mode = path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077 and not _is_credential(path):
                raise InvalidArgument(f"the token file {path} can be read by other users: run chmod 600 on it")
            lines = [line.strip() for line in path.read_text().splitlines()]
        except FileNotFoundError:
            raise InvalidArgument(
                f"the token file {path} does not exist: `trinitylake token create` makes one"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the token file {path} cannot be read: {error}") from error
        return cls(line for line in lines if line and not line.startswith("#"))

    @property
    def principals(self) -> list[Principal]:
        """The principals, in the order of the lines."""
        return [principal for _, principal in self._principals]

    @property
    def names(self) -> frozenset[str]:
        """Names of the principals."""
        return frozenset(principal.name for _, principal in self._principals)

    def principal(self, token: bytes) -> Principal | None:
        """The principal of a token, or None. Compares in constant time."""
        given = _digest(token)
        found = None
        for digest, principal in self._principals:
            if hmac.compare_digest(given, digest):
                found = principal
        return found

    #: The same, for the interface of `Bearers`.
    known = principal


def _is_credential(path: Path) -> bool:
    """Whether the file is a systemd credential. Only this service can read it, although its mode has group rights."""
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
            f"a token is printable ASCII without spaces, of at least {TOKEN_MIN_LENGTH} characters, "
            "or sha256: and the 64 hexadecimal digits of its hash"
        )
    name, grants = (rest[0], rest[1:]) if rest else (f"token-{digest.hex()[:8]}", [])
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"the name of a token has up to 100 of A-Z a-z 0-9 . _ @ + -, not {name!r}")
    return digest, Principal.of(name, grants or default)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class ListedToken(NamedTuple):
    """One line of a token file, without the token.

    Attributes:
        name: name of the principal.
        grants: its rights as `role:pattern`; empty for a token without rights.
    """

    name: str
    grants: tuple[str, ...]


def create_token(path: Path, name: str, grants: Iterable[str]) -> str:
    """Add a token for a principal. Returns the token; the file stores only its hash.

    The file is created if it does not exist. Raises `InvalidArgument` for an invalid name, an invalid grant or an
    unreadable file, and `ObjectAlreadyExists` if the principal already has a token.
    """
    token = secrets.token_urlsafe(32)
    line = " ".join([f"sha256:{_digest(token.encode()).hex()}", name, *grants])
    if any(character.isspace() for word in (name, *grants) for character in word):
        raise InvalidArgument("the name and the grants of a token must not contain spaces")
    Tokens([line])
    if path.exists():
        if any(one.name == name for one in listed_tokens(path)):
            raise ObjectAlreadyExists(f"{name} already has a token in {path}: revoke it first")
        text = path.read_text()
    else:
        text = _HEAD
    _replace(path, text + ("" if text.endswith("\n") else "\n") + line + "\n")
    return token


def listed_tokens(path: Path) -> list[ListedToken]:
    """The tokens of a file, in the order of its lines. Raises `InvalidArgument` as `Tokens.from_file` does."""
    principals = Tokens.from_file(path).principals
    return [
        ListedToken(one.name, tuple(f"{grant.role.name.lower()}:{grant.pattern}" for grant in one.grants))
        for one in principals
    ]


def revoke_tokens(path: Path, name: str) -> None:
    """Remove the tokens of a principal. Raises `ObjectNotFound` if it has none."""
    lines = path.read_text().splitlines(keepends=True) if listed_tokens(path) else []
    kept = [line for line in lines if not _is_of(line, name)]
    if len(kept) == len(lines):
        raise ObjectNotFound(f"{name} has no token in {path}")
    _replace(path, "".join(kept))


def _is_of(line: str, name: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith("#") and Tokens([stripped]).principals[0].name == name


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically. Only its owner may read it."""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidArgument(f"the token file {path} cannot be written: {error}") from error
