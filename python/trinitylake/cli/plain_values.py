"""Conversion of simple option values without pydantic, which typer uses since 0.27, and their types in help.

Importing pydantic takes longer than a small command. Strings, whole numbers, switches, choices and lists of strings are
converted here; typer converts all other values, and reports invalid ones. This replaces a private part of typer: if
that part changes, commands become slower, and a test of their imports fails. Help shows TEXT and NUMBER instead of
Python's types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import EnumType
from typing import Any, Literal, get_args, get_origin

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,99}")
#: Attribute in which typer stores the converter of a parameter; it is None before the first conversion.
_PLACE = "_runtime_param"


class PlainCommand(TyperCommand):
    """A command with fast conversion of simple values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_fast_conversion(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands with fast conversion of simple values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_fast_conversion(super().get_params(ctx))


def _with_fast_conversion(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, _PLACE, "") is None:
            setattr(parameter, _PLACE, _Plain(parameter.type_descriptor))
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None and not (parameter.is_flag or parameter.type_descriptor.is_choice):
            parameter.metavar = "NUMBER" if parameter.type_descriptor.annotation is int else "TEXT"
    return found


class _Plain:
    """Converter of the values of one parameter."""

    def __init__(self, descriptor: Any) -> None:
        self._type = descriptor.annotation
        self._limits = descriptor.parameter_info

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Convert a value. Raises typer's errors."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._type is str and isinstance(value, str):
            return value
        if self._type is bool and isinstance(value, bool):
            return value
        if self._type is int:
            return self._number(value)
        if isinstance(self._type, EnumType) and value in list(self._type):
            return self._type(value)
        if get_origin(self._type) is Literal and value in get_args(self._type):
            return value
        is_list = get_origin(self._type) is list and get_args(self._type) == (str,) and isinstance(value, list | tuple)
        if is_list and all(isinstance(one, str) for one in value):
            return list(value)
        setattr(param, _PLACE, None)
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _number(self, value: Any) -> int:
        """A whole number within the limits of the parameter. Raises `BadParameter` for another value."""
        least, greatest = self._limits.min, self._limits.max
        if _WHOLE_NUMBER.fullmatch(str(value)) is not None:
            number = int(value)
            if (least is None or number >= least) and (greatest is None or number <= greatest):
                return number
        limits = [f"at least {least}"] * (least is not None) + [f"at most {greatest}"] * (greatest is not None)
        raise BadParameter(f"expected a whole number{' of ' if limits else ''}{' and '.join(limits)}, not {value!r}")
