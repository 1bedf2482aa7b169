"""The error for a file that violates the format."""

from __future__ import annotations


class BrokenRule(AssertionError):
    """A file violates a rule of the format."""


def require(condition: object, rule: str) -> None:
    """Check a rule of the format. Raises `BrokenRule`."""
    if not condition:
        raise BrokenRule(rule)
