"""Positions of a search in tokens that only this process can read.

A search looks at keys that its principal may not see, and may have to stop at one of them. So the position is
encrypted, with a key of this process, and padded: its length tells nothing either. After a restart, or at another
server, the search begins again.
"""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken

from trinitylake.rest.errors import bad_request

_PADDED_SIZE_BYTES = 1 << 10
_fernet = Fernet(Fernet.generate_key())


def sealed(position: str) -> str:
    """A token for a position."""
    data = position.encode()
    size_bytes = -(-(len(data) + 1) // _PADDED_SIZE_BYTES) * _PADDED_SIZE_BYTES
    return _fernet.encrypt(data + b"\x00" * (size_bytes - len(data))).decode()


def opened(token: str) -> str:
    """The position in a token. Raises `RestError` 400 for one that this process did not make."""
    try:
        return _fernet.decrypt(token.encode()).rstrip(b"\x00").decode()
    except (InvalidToken, ValueError) as error:
        raise bad_request("next is not a token of this server since it started: begin the search again") from error
