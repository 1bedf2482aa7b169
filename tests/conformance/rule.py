"""What a reader says of a file that contradicts the format."""

from __future__ import annotations


class BrokenRule(AssertionError):
    """A file contradicts the format."""


def require(condition: object, rule: str) -> None:
    """Check a rule of the format. Raises `BrokenRule`."""
    if not condition:
        raise BrokenRule(rule)
