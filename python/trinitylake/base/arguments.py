"""Checks of the arguments of public functions, before the function does anything.

A parameter name has one meaning in all functions, so there is one rule for each name (`_RULES`), which the decorator
`checked` applies. `qualified_names.py` checks names of objects, `tables/input_rows.py` checks rows.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from trinitylake.base.foreign_errors import own_error
from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.errors import InvalidArgument, InvalidLocation, VersionNotFound

Function = TypeVar("Function", bound=Callable[..., Any])
#: Function of a value and its parameter's name that returns the value, possibly converted, or raises an error.
Rule: TypeAlias = Callable[[Any, str], Any]

#: The largest version number: the name of a root has at most 63 binary digits (format §3).
MAX_VERSION = (1 << 63) - 1
_MAX_COUNT = (1 << 64) - 1
#: Types of query parameters in addition to strings, decimals, lists, dictionaries and None.
_PARAMETER_TYPES = (bool, int, float, date, time, timedelta, bytes, bytearray, UUID)
#: Digits of DuckDB's longest DECIMAL; a longer decimal is passed as a DOUBLE.
_DECIMAL_DIGITS = 38


def text(value: Any, what: str) -> str:
    """A string that can be encoded in UTF-8. Raises `InvalidArgument`."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, got {_shown(value)}")
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} cannot be encoded in UTF-8: {error.reason}") from None
    return value


def whole_number(value: Any, what: str, *, minimum: float = 0, maximum: float = _MAX_COUNT) -> int:
    """A whole number from `minimum` to `maximum`, both included. Raises `InvalidArgument`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidArgument(f"{what} must be a whole number, got {_shown(value)}")
    if not minimum <= number <= maximum:
        limit = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise InvalidArgument(f"{what} must be {limit}, got {_shown(value)}")
    return number


def flag(value: Any, what: str) -> bool:
    """True or False. Raises `InvalidArgument`."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{what} must be True or False, got {_shown(value)}")
    return value


def texts(values: Any, what: str) -> tuple[str, ...]:
    """One string or several, as a tuple. Raises `InvalidArgument`."""
    return tuple(text(value, what) for value in _several(values, what, "a string or several strings"))


def text_mapping(values: Any, what: str) -> dict[str, str]:
    """A copy of a mapping of strings to strings. Raises `InvalidArgument`."""
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"{what} must map strings to strings, got {_shown(values)}")
    return {text(key, f"a name in {what}"): text(value, f"{key!r} in {what}") for key, value in values.items()}


def location(value: Any, what: str = "the root") -> str:
    """A URI or path as a string, also from a `pathlib.Path`. Raises `InvalidArgument` and `InvalidLocation`."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a path or a URI, got {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a folder name from `os.listdir` that is not UTF-8
        raise InvalidLocation(f"{value!r} is not a valid location: it is not valid UTF-8 ({error.reason})") from None
    return value


def metadata_uri(value: Any, what: str) -> str:
    """A URI; a `pathlib.Path` becomes a `file://` URI. Raises the errors of `location`."""
    return f"file://{os.path.abspath(value)}" if isinstance(value, os.PathLike) else location(value, what)


def locations(values: Any, what: str) -> tuple[str, ...]:
    """One or several URIs or paths, as a tuple of strings. Raises `InvalidArgument` and `InvalidLocation`."""
    return tuple(location(value, what) for value in _several(values, what, "paths or URIs"))


def version_number(value: Any, what: str) -> int:
    """The number of a version. Raises `InvalidArgument`, or `VersionNotFound` if it is out of range."""
    number = whole_number(value, what, minimum=-math.inf, maximum=math.inf)
    if not 0 <= number <= MAX_VERSION:
        raise VersionNotFound(f"version {_shown(number)} does not exist: versions are numbered from 0")
    return number


def moment(value: Any, what: str) -> datetime:
    """A datetime from a datetime, a date (its start) or an ISO 8601 string. Raises `InvalidArgument`."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time.min)
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} must be a datetime, a date or ISO 8601 string, got {_shown(value)}") from error


def versions(value: Any, what: str) -> int | tuple[int, int] | Literal["all"]:
    """The number of a version, the first and last number of a range, or "all". Raises `InvalidArgument`."""
    match value:
        case "all":
            return "all"
        case (int(first), int(last)) if 0 <= first <= last <= MAX_VERSION:
            return first, last
        case int(one) if 0 <= one <= MAX_VERSION and not isinstance(one, bool):
            return one
    raise InvalidArgument(f'{what} must be a number, a range such as (3, 7), or "all", got {_shown(value)}')


def version_reference(value: Any, what: str) -> int | str | date:
    """A reference to a version for `Lakehouse.at`: a number, a string, a date or a datetime.

    Raises `InvalidArgument`.
    """
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        return text(value, what)
    return whole_number(value, what, minimum=-math.inf, maximum=math.inf)


def seconds(value: Any, what: str) -> float:
    """A number of seconds, not negative. Raises `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise InvalidArgument(f"{what} must be a number of seconds, got {_shown(value)}")
    return float(value)


def callback(value: Any, what: str) -> Callable[..., Any]:
    """A callable. Raises `InvalidArgument`."""
    if not callable(value):
        raise InvalidArgument(f"{what} must be a function, got {_shown(value)}")
    return cast(Callable[..., Any], value)


def durability(value: Any, what: str) -> Literal["fsync", "none"]:
    """`"fsync"` or `"none"`. Raises `InvalidArgument`."""
    if value not in ("fsync", "none"):
        raise InvalidArgument(f"{what} must be 'fsync' or 'none', got {_shown(value)}")
    return cast(Literal["fsync", "none"], value)


def query_parameters(values: Any, what: str) -> list[Any] | dict[str, Any] | None:
    """Parameters of a query, positional or by name. Raises `InvalidArgument`."""
    if isinstance(values, Mapping):
        return {text(name, f"a name in {what}"): _parameter(one, f"{name!r} in {what}") for name, one in values.items()}
    if isinstance(values, str | bytes | set | frozenset) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{what} must be values in order, or a mapping of names to values, got {_shown(values)}")
    return [_parameter(one, f"{what}, value {number}") for number, one in enumerate(values, 1)]


def _parameter(value: Any, what: str) -> Any:
    if isinstance(value, str):
        return text(value, what)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, list | tuple):
        return [_parameter(one, what) for one in value]
    if isinstance(value, dict):
        return {key: _parameter(one, what) for key, one in value.items()}
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # of pandas; DuckDB would cut them
        raise InvalidArgument(f"{what} has nanoseconds: pass text, and cast it in the query, as in ?::TIMESTAMP_NS")
    if value is None or isinstance(value, _PARAMETER_TYPES):
        return value
    raise InvalidArgument(f"{what} has a type that queries do not support: {_shown(value)}")


def _decimal(value: Decimal) -> Decimal | float:
    """Convert a decimal for DuckDB, which would ignore the exponent of 1E+3 and the sign of -Infinity."""
    if value.is_nan():
        return math.nan
    if value.is_infinite() or value.adjusted() >= _DECIMAL_DIGITS:
        return float(value)
    return Decimal(f"{value:f}")


def several(values: Any, what: str) -> tuple[Any, ...]:
    """One name or several, as a tuple. The caller checks the names. Raises `InvalidArgument`."""
    return tuple(_several(values, what, "names"))


def _several(values: Any, what: str, form: str) -> Iterable[Any]:
    if isinstance(values, str | os.PathLike):
        return (values,)
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{what} must be {form}, got {_shown(values)}")
    return values


def options(values: Any, what: str) -> dict[str, str]:
    """Storage options and the like, as strings: strings, whole numbers and booleans. Raises `InvalidArgument`."""
    as_text = {key: str(one).lower() if isinstance(one, bool) else one for key, one in mapping(values, what).items()}
    return text_mapping({key: str(one) if isinstance(one, int) else one for key, one in as_text.items()}, what)


def mapping(values: Any, what: str) -> Mapping[Any, Any]:
    """A mapping. The caller checks its values. Raises `InvalidArgument`."""
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"{what} must be a mapping, got {_shown(values)}")
    return values


def query(value: Any, what: str) -> str | dict[str, str]:
    """SQL as a string, or a mapping of dialects to SQL. Raises `InvalidArgument`."""
    return text_mapping(value, what) if isinstance(value, Mapping) else text(value, what)


def user_properties(values: Any, what: str) -> dict[str, str]:
    """Properties of an object. Raises `InvalidArgument`, also for names that are reserved for the library."""
    properties = text_mapping(values, what)
    user_names(properties, what)
    return properties


def user_names(values: Any, what: str) -> tuple[str, ...]:
    """Names of properties. Raises `InvalidArgument`, also for names that are reserved for the library."""
    names = texts(values if not isinstance(values, Mapping) else list(values), what)
    if own := [name for name in names if name.startswith(OWN_PROPERTY_PREFIX)]:
        raise InvalidArgument(
            f"{what} that start with {OWN_PROPERTY_PREFIX!r} are reserved for the library: {', '.join(own)}"
        )
    return names


def table_properties(values: Any, what: str) -> dict[str, str]:
    """Properties of an Iceberg table, whose values may also be numbers and booleans. Raises `InvalidArgument`."""
    as_text = {key: str(one) if isinstance(one, int | float) else one for key, one in mapping(values, what).items()}
    return user_properties(as_text, what)


_RULES: dict[str, Rule] = {
    "after": version_number,
    "allow_external": flag,
    "author": text,
    "before": version_number,
    "cache_size_bytes": whole_number,
    "cascade": flag,
    "columns": texts,
    "coordination": text,
    "default_namespace": text,
    "dialect": text,
    "dry_run": flag,
    "durability": durability,
    "evolve_schema": flag,
    "exist_ok": flag,
    "former": locations,
    "grep": text,
    "id": text,
    "lazy": flag,
    "limit": whole_number,
    "max_attempts": functools.partial(whole_number, minimum=1, maximum=(1 << 32) - 1),
    "message": text,
    "metadata_location": metadata_uri,
    "missing_ok": flag,
    "name": text,
    "namespaces": several,
    "pickle_secrets": flag,
    "parameters": query_parameters,
    "progress": callback,
    "query": text,
    "properties": user_properties,
    "remove_properties": user_names,
    "repair": flag,
    "restart": flag,
    "rewrite": flag,
    "since": version_reference,
    "snapshot_id": functools.partial(whole_number, minimum=-math.inf, maximum=math.inf),
    "source": location,
    "source_storage_options": options,
    "sql": query,
    "storage_options": options,
    "table_name": text,
    "tables": several,
    "target": location,
    "timeout_seconds": seconds,
    "transaction_id": text,
    "until": version_reference,
    "uri": location,
    "version": version_number,
}


#: Arguments of PyIceberg's methods, with the names of the same arguments here.
_OF_PYICEBERG = {
    "row_filter": "filter",
    "selected_fields": "columns",
    "overwrite_filter": "filter",
    "delete_filter": "filter",
}


def checked(function: Function) -> Function:
    """Decorator that applies the rules of `_RULES` to arguments, except to default values and to an allowed None.

    Errors of libraries in the function become errors of this package (`foreign_errors.py`).
    """
    return checked_as()(function)


def checked_as(**others: Rule) -> Callable[[Function], Function]:
    """Like `checked`, with different or additional rules for some parameters."""

    def decorate(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        rules = {one.name: rule for one in parameters if (rule := others.get(one.name) or _RULES.get(one.name))}
        defaults = {one.name: one.default for one in parameters}
        optional = {one.name for one in parameters if "None" in str(one.annotation)}
        accepts_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        ruled = [(position, name) for position, name in enumerate(positional) if name in rules]

        def value_of(name: str, value: Any) -> Any:
            if value is defaults[name] or (value is None and name in optional):
                return value
            return rules[name](value, name)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if ruled and len(args) > ruled[0][0]:
                given = [*args]
                for position, name in ruled:
                    if position >= len(given):
                        break
                    given[position] = value_of(name, given[position])
                args = tuple(given)
            for name, value in kwargs.items():
                if name in rules:
                    kwargs[name] = value_of(name, value)
                elif name not in defaults and not accepts_any:
                    raise InvalidArgument(
                        f"{function.__qualname__}() has no argument {name!r}; {_hint_of(name, defaults)}"
                    )
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if (own := own_error(error)) is None:
                    raise
                raise own from error

        return cast(Function, run)

    return decorate


def _hint_of(name: str, defaults: Mapping[str, Any]) -> str:
    own = [one for one in defaults if one != "self"]
    return f"did you mean {meant!r}?" if (meant := _OF_PYICEBERG.get(name)) in own else hint(name, own)


def hint(name: str, names: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the most similar name, or else all names."""
    names = list(names)
    near = [one for one in names if one.lower() == name.lower()] or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"


def _shown(value: Any) -> str:
    written = repr(value)
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return f"{written if len(written) <= 60 else written[:57] + '...'}{kind}"
