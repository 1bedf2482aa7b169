"""Partition values of decimals in Arrow data of other processes."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import DecimalType

from trinitylake.base.foreign_errors import own_error
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.partitioned_rows import transformed
from trinitylake.iceberg_storage.errors import translated


@pytest.mark.parametrize("precision", [9, 18, 38])
@pytest.mark.parametrize("transform", [BucketTransform(4), TruncateTransform(10)])
def test_decimals_that_are_aligned_to_8_bytes_have_the_same_partition_values(
    precision: int, transform: BucketTransform[Decimal] | TruncateTransform[Decimal]
) -> None:
    """Decimals in buffers that are aligned to 8 bytes, as in the JVM, have the same partition values. Rust reads
    decimals 16 bytes at a time, and a write panicked.
    """
    type = DecimalType(precision, 2)
    values = pa.array([None, *(Decimal(number) / 4 for number in range(101))], pa.decimal128(precision, 2))
    validity, data = values.buffers()
    shifted = pa.py_buffer(b"12345678" + bytes(data)).slice(8)
    unaligned = pa.Array.from_buffers(values.type, len(values), [validity, shifted])
    assert unaligned.buffers()[1].address % 16 == 8
    expected = [transform.transform(type)(value) for value in values.to_pylist()]
    assert transformed(unaligned, transform, type).to_pylist() == expected


def test_a_panic_of_a_library_is_translated() -> None:
    class PanicException(BaseException):
        """Like the class of PyO3, which is not a subclass of `Exception`."""

    assert own_error(RuntimeError("not of an input")) is None
    with pytest.raises(InvalidArgument, match="misaligned"), translated("shop.orders"):
        raise PanicException("misaligned pointer")
