"""Conditions that must hold when a transaction commits: write, audit, publish, over any number of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from trinitylake.errors import CheckFailed, InvalidArgument
from trinitylake.sql_check import first_row

if TYPE_CHECKING:
    from trinitylake.transaction import Transaction

Check: TypeAlias = "Callable[[Transaction], object]"


class Checks:
    """The checks of one transaction, in order."""

    def __init__(self, checks: Iterable[str] = ()) -> None:
        self._checks: list[str | Check] = list(checks)

    def __bool__(self) -> bool:
        return bool(self._checks)

    def add(self, check: str | Check) -> None:
        """SQL, the name of a function, or a function. Raises `InvalidArgument` for anything else."""
        if not (isinstance(check, str) and check.strip()) and not callable(check):
            raise InvalidArgument(f"a check is SQL, 'package.module:function' or a function, not {check!r}")
        self._checks.append(check)

    def names(self) -> list[str]:
        """What can be kept of them when the transaction is saved. Raises `InvalidArgument` for a local function."""
        return [_name(check) for check in self._checks]

    def run(self, transaction: Transaction) -> None:
        """Raises `CheckFailed` for the first that does not hold."""
        for check in self._checks:
            if isinstance(check, str) and not _is_function_name(check):
                _run_sql(transaction, check)
                continue
            function = _function(check) if isinstance(check, str) else check
            if function(transaction) is False:
                raise CheckFailed(f"check {_label(check)} does not hold; nothing was committed")


def _is_function_name(check: str) -> bool:
    module, colon, name = check.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _function(check: str) -> Check:
    module, _, name = check.partition(":")
    try:
        function: Check = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"check {check!r}: {error}") from error
    return function


def _name(check: str | Check) -> str:
    if isinstance(check, str):
        return check
    name = f"{getattr(check, '__module__', '')}:{getattr(check, '__qualname__', '')}"
    if not _is_function_name(name) or name.startswith("__main__:"):
        raise InvalidArgument(
            f"check {_label(check)} cannot be saved: another process finds functions by 'package.module:function'"
        )
    return name


def _label(check: str | Check) -> str:
    return repr(check) if isinstance(check, str) else str(getattr(check, "__qualname__", check))


def _run_sql(transaction: Transaction, sql: str) -> None:
    row = first_row(transaction, sql)
    if row is None or not row[0]:
        raise CheckFailed(
            f"check {sql!r} does not hold: it answered {row[0] if row else 'no row'}; nothing was committed"
        )
