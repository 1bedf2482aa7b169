"""Which values a column of numbers can have, beside a number that a filter compares it with.

PyIceberg makes the number one of the column's type first. It rounds, so that `i < 2.5` misses the rows of 2 or refuses;
it keeps the digits of 0.1 for a column of 32 bits, whose 0.1 is another number by its bounds; and a number that is too
large it takes for the largest one in a list.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any

from pyiceberg.expressions.literals import DecimalLiteral, DoubleLiteral, FloatLiteral, Literal, LongLiteral
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

_NUMBERS = (LongLiteral, FloatLiteral, DoubleLiteral, DecimalLiteral)
_LARGEST_FLOAT = (2 - 2.0**-23) * 2.0**127
_BITS = {IntegerType: 31, LongType: 63}
_MAX_DIGITS = 400


@dataclass(frozen=True)
class Beside:
    """The values of a column beside a number: the largest one that is not above it, and the least that is not below.

    They are the same for a number that the column can have. None where there is no such value.
    """

    floor: Literal[Any] | None
    ceiling: Literal[Any] | None

    @property
    def is_exact(self) -> bool:
        """Whether the column can have the number itself."""
        return self.floor is not None and self.floor is self.ceiling


def beside(literal: Literal[Any], type: IcebergType) -> Beside | None:
    """Where a number lies among the values of a column; None unless both are numbers."""
    if not isinstance(literal, _NUMBERS):
        return None
    match type:
        case IntegerType() | LongType():
            most = 2 ** _BITS[type.__class__] - 1
            return _among(literal.value, 0, -most - 1, most, lambda value: LongLiteral(int(value)))
        case DecimalType():
            most = 10**type.precision - 1
            return _among(literal.value, type.scale, -most, most, DecimalLiteral)
        case DoubleType():
            return _same(DoubleLiteral(_as_double(literal.value)))
        case FloatType():
            return _among_floats(_as_double(literal.value))
    return None


def _same(literal: Literal[Any]) -> Beside:
    return Beside(literal, literal)


def _among(value: Any, scale: int, least: int, most: int, made: Any) -> Beside:
    """Among the multiples of 10^-scale, from `least` to `most` of them."""
    if isinstance(value, float) and math.isinf(value):
        floor: Any = math.inf if value > 0 else -math.inf
        is_exact = False
    else:
        with localcontext() as context:
            context.prec = _MAX_DIGITS
            scaled = Decimal(value).scaleb(scale)
            floor = int(scaled.to_integral_value(rounding=ROUND_FLOOR))
            is_exact = floor == scaled

    def of(number: int) -> Literal[Any]:
        with localcontext() as context:
            context.prec = _MAX_DIGITS
            literal: Literal[Any] = made(Decimal(number).scaleb(-scale))
        return literal

    if floor > most:
        return Beside(of(most), None)
    if floor < least:
        return Beside(None, of(least))
    if is_exact:
        return _same(of(floor))
    return Beside(of(floor), of(floor + 1) if floor < most else None)


def _as_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _among_floats(value: float) -> Beside:
    if math.isinf(value):
        return _same(FloatLiteral(value))
    if value > _LARGEST_FLOAT:
        return Beside(FloatLiteral(_LARGEST_FLOAT), FloatLiteral(math.inf))
    if value < -_LARGEST_FLOAT:
        return Beside(FloatLiteral(-math.inf), FloatLiteral(-_LARGEST_FLOAT))
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return _same(FloatLiteral(rounded))
