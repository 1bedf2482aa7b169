"""Creates, lists and revokes the tokens in a token file, which stores only hashes of new tokens."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trinitylake.errors import InvalidArgument, ObjectAlreadyExists, ObjectNotFound
from trinitylake.rest.security.tokens import Tokens

_HEAD = "# token or its hash, name, grants (role:pattern); see `trinitylake token --help`\n"


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
    line = " ".join([f"sha256:{hashlib.sha256(token.encode()).hexdigest()}", name, *grants])
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
