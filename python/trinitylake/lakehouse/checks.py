"""Checks of a transaction: conditions over any number of tables that must hold when it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Generic, TypeAlias, TypeVar

from trinitylake.errors import CheckFailed, InvalidArgument
from trinitylake.lakehouse.reader import Reader

Subject = TypeVar("Subject", bound=Reader)
#: A function that is called with the transaction. The check fails if the function returns False (of Python, NumPy or
#: Arrow).
Check: TypeAlias = Callable[[Subject], object]


class Checks(Generic[Subject]):
    """The checks of one transaction, in order.

    Args:
        saved: the checks of a saved transaction. Another process may have chosen these, so a Python function among them
            runs only if `allowed` names it.
        allowed: functions as `module:function`, and names of modules whose functions may run, including those of their
            submodules.
    """

    def __init__(self, saved: Sequence[str] = (), allowed: Iterable[str] = ()) -> None:
        self._checks: list[str | Check[Subject]] = list(saved)
        modules = tuple(allowed)
        self._refused = [
            check for check in saved if _is_function_name(check) and not any(_is_of(check, one) for one in modules)
        ]

    def __bool__(self) -> bool:
        return bool(self._checks)

    def add(self, check: str | Check[Subject]) -> None:
        """Add a check: SQL, the name of a function, or a function. Raises `InvalidArgument` for anything else."""
        if not (isinstance(check, str) and check.strip()) and not callable(check):
            raise InvalidArgument(f"a check is SQL, 'package.module:function' or a function, not {check!r}")
        self._checks.append(check)

    def names(self) -> list[str]:
        """Names to import the checks by, saved with the transaction. Raises `InvalidArgument` for a local function."""
        return [_name(check) for check in self._checks]

    def require_allowed(self, transaction_id: str) -> None:
        """Raise `InvalidArgument` if a saved check is a function that is not allowed to run here."""
        if self._refused:
            modules = sorted({check.partition(":")[0] for check in self._refused})
            raise InvalidArgument(
                f"transaction {transaction_id} was saved with checks that are Python functions, and these need "
                f"permission: {', '.join(self._refused)}. If you trust them, resume it with allow_checks={modules}"
            )

    def run(self, transaction: Subject) -> None:
        """Run all checks. Raises `CheckFailed` for the first check that does not hold."""
        for check in self._checks:
            if isinstance(check, str) and not _is_function_name(check):
                _run_sql(transaction, check)
                continue
            function = _function(check) if isinstance(check, str) else check
            if _is_false(function(transaction)):
                raise CheckFailed(f"check {_label(check)} does not hold; nothing was committed")


def _is_false(answer: object) -> bool:
    """Whether a value is False: Python's, NumPy's (which pandas returns) or Arrow's."""
    # Arrow's scalars are recognised by their method, so that Arrow need not be imported.
    value = answer.as_py() if hasattr(answer, "as_py") else answer
    is_numpy_truth = getattr(getattr(value, "dtype", None), "kind", "") == "b" and getattr(value, "ndim", 1) == 0
    return value is False or (is_numpy_truth and not value)


def _is_function_name(check: str) -> bool:
    module, colon, name = check.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _is_of(check: str, allowed: str) -> bool:
    """Whether `check` equals `allowed`, or is a function of the module `allowed` or of one of its submodules."""
    module = check.partition(":")[0]
    return allowed in (check, module) or module.startswith(f"{allowed}.")


def _function(check: str) -> Check[Any]:
    module, _, name = check.partition(":")
    try:
        function: Check[Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"check {check!r}: {error}") from error
    return function


def _name(check: str | Check[Any]) -> str:
    if isinstance(check, str):
        return check
    name = f"{getattr(check, '__module__', '')}:{getattr(check, '__qualname__', '')}"
    if not _is_function_name(name) or name.startswith("__main__:"):
        raise InvalidArgument(
            f"check {_label(check)} cannot be saved: another process finds functions by 'package.module:function'"
        )
    return name


def _label(check: str | Check[Any]) -> str:
    return repr(check) if isinstance(check, str) else str(getattr(check, "__qualname__", check))


def _run_sql(transaction: Reader, sql: str) -> None:
    """Run a check in SQL. Raises `InvalidArgument` and `ObjectNotFound` as queries do, and `CheckFailed`.

    Errors of DuckDB can quote rows. They are not shown, because another user may have written the check or a view that
    the check reads: checks are saved with transactions, and a server commits the transactions of all its clients.
    """
    from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions  # loads DuckDB and PyIceberg

    check = PreparedQuery(sql, transaction, QueryOptions(quotes_rows=False, subject=f"check {sql!r}"))
    with check.running() as rows:
        row = next(iter(rows.fetchmany(1)), None)
    if row is None or not row[0]:
        raise CheckFailed(
            f"check {sql!r} does not hold: it answered {row[0] if row else 'no row'}; nothing was committed"
        )
