"""Partition specs and sort orders written as text: `"month(time_hour)"`, `"bucket(16, id)"`, `"dep_time desc"`.

A partition expression is a column or `transform(column)`. `bucket` and `truncate` take a width: `bucket(16, id)`,
`bucket(id, 16)` or, as Iceberg writes it, `bucket[16](id)`. Spark's spellings are accepted too: plurals (`months`,
`days`), `date` and `date_hour`, `trunc`, and column names in another case. Names may be in backticks or double quotes.
A sort expression is a partition expression, optionally followed by `asc` or `desc` and `nulls first` or `nulls last`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform, parse_transform

from trinitylake.base.arguments import texts
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.row_order import RowOrder, by_columns

#: Transforms without a width, and further spellings.
_PLAIN = ("identity", "year", "month", "day", "hour")
_SPELLINGS = {"date": "day", "date_hour": "hour"}
_QUOTED = r"\"[^\"]*\"|`[^`]*`"
_CALL = re.compile(
    r"(?P<transform>\w+)\s*(?:\[\s*(?P<bracketed>\d+)\s*\])?\s*"
    rf"\(\s*(?:(?P<first>\d+)\s*,\s*)?(?P<column>(?:{_QUOTED}|[^(),])+?)\s*(?:,\s*(?P<last>\d+)\s*)?\)"
)
#: A quoted part of a name, in backticks or double quotes. A doubled quote stands for one quote.
_NAME = re.compile(r"([`\"])((?:(?!\1).|\1\1)+)\1")
_SORT_SUFFIX = re.compile(r"^(?P<term>.*?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?$", re.I)


Given = TypeVar("Given", PartitionSpec, SortOrder)


def words(given: Given | str | Iterable[str] | None, what: str) -> Given | tuple[str, ...] | None:
    """A spec or order object, or a tuple of its expressions. Raises `InvalidArgument` for anything else."""
    return given if given is None or isinstance(given, PartitionSpec | SortOrder) else texts(given, what)


def partition_spec(spec: PartitionSpec | str | Iterable[str] | None, schema: Schema) -> PartitionSpec:
    """A PyIceberg partition spec on `schema`. Raises `InvalidArgument` for an unknown transform or column."""
    if spec is None:
        return UNPARTITIONED_PARTITION_SPEC
    if not isinstance(spec, PartitionSpec):
        expressions = [spec] if isinstance(spec, str) else list(spec)
        fields = []
        for position, expression in enumerate(expressions):
            source_id, column, transform = _term(expression, schema)
            name = column if isinstance(transform, IdentityTransform) else f"{column}_{_transform_word(transform)}"
            fields.append(PartitionField(source_id, PARTITION_FIELD_ID_START + position, transform, name))
        spec = PartitionSpec(*fields)
    try:
        spec.check_compatible(schema)
    except ValidationError as error:
        raise InvalidArgument(f"partition_spec does not fit the schema: {error}") from error
    return spec


def split_expressions(text: str) -> list[str]:
    """Split a list of expressions at commas: `"bucket(4, id), day"` becomes `["bucket(4, id)", "day"]`.

    A comma in parentheses, or in a quoted name, does not separate expressions.
    """
    return [part.strip() for part in re.findall(rf"(?:{_QUOTED}|\((?:{_QUOTED}|[^)])*\)|[^,])+", text)]


def partition_expressions(spec: PartitionSpec, schema: Schema) -> list[str]:
    """The fields of a spec as text, such as "bucket[4](id)", without fields that were removed (`void`)."""
    return [
        f"{field.transform}({schema.find_column_name(field.source_id)})"
        for field in spec.fields
        if not isinstance(field.transform, VoidTransform)
    ]


def check_same_spec(given: PartitionSpec | str | Iterable[str], metadata: TableMetadata, table: str) -> None:
    """Raise `InvalidArgument` if a table is partitioned in another way. The names of partition fields may differ."""
    schema = metadata.schema()
    wanted, present = (
        ", ".join(partition_expressions(spec, schema)) or "nothing"
        for spec in (partition_spec(given, schema), metadata.spec())
    )
    if wanted != present:
        raise InvalidArgument(f"table {table} is partitioned by {present}, not by {wanted}")


def sort_order(order: SortOrder | str | Iterable[str] | None, schema: Schema) -> SortOrder:
    """A PyIceberg sort order on `schema`. Raises `InvalidArgument` for an unknown transform or column."""
    if order is None:
        return UNSORTED_SORT_ORDER
    if not isinstance(order, SortOrder):
        fields = [_sort_field(expression, schema) for expression in ([order] if isinstance(order, str) else order)]
        order = SortOrder(*fields) if fields else UNSORTED_SORT_ORDER
    try:
        order.check_compatible(schema)
    except ValidationError as error:
        raise InvalidArgument(f"sort_order does not fit the schema: {error}") from error
    return order


def row_order(order: SortOrder | str | Iterable[str], schema: Schema) -> RowOrder:
    """Sort order by columns. Raises `InvalidArgument` as `sort_order` does, and for transforms."""
    made = sort_order(order, schema)
    if not by_columns(made):
        raise InvalidArgument("rows are sorted by columns: sort_order takes no transforms here")
    return RowOrder(made.fields, schema)


def _sort_field(expression: str, schema: Schema) -> SortField:
    match = _SORT_SUFFIX.match(expression.strip())
    if match is None:
        raise InvalidArgument(f"cannot read the sort expression {expression!r}")
    source_id, _, transform = _term(match["term"], schema)
    descending = (match["direction"] or "asc").lower() == "desc"
    nulls_last = match["nulls"].lower() == "last" if match["nulls"] else descending
    return SortField(
        source_id=source_id,
        transform=transform,
        direction=SortDirection.DESC if descending else SortDirection.ASC,
        null_order=NullOrder.NULLS_LAST if nulls_last else NullOrder.NULLS_FIRST,
    )


def _term(expression: str, schema: Schema) -> tuple[int, str, Transform[Any, Any]]:
    """The source column's id and name, and the transform, of `column` or `transform(column)`."""
    call = _CALL.fullmatch(expression.strip())
    written = call["column"] if call else expression.strip()
    column = _NAME.sub(lambda part: part[2].replace(part[1] * 2, part[1]), written)
    widths = [width for width in call.group("bracketed", "first", "last") if width] if call else []
    if len(widths) > 1:
        raise InvalidArgument(f"{expression!r} has two widths: write bucket(16, column)")
    for is_exact in (True, False):
        with suppress(ValueError):
            id = schema.find_field(column, is_exact).field_id
            break
    else:
        raise InvalidArgument(f"{expression!r}: the schema has no column {column!r}")
    name = schema.find_column_name(id) or column
    return id, name, _transform(call["transform"], *widths) if call else IdentityTransform()


def _transform(word: str, width: str | None = None) -> Transform[Any, Any]:
    word = word.lower()
    if word in ("bucket", "truncate", "trunc"):
        if width is None or int(width) == 0:
            raise InvalidArgument(f"{word} needs a width: {word}(16, column)")
        return parse_transform(f"{'bucket' if word == 'bucket' else 'truncate'}[{int(width)}]")
    plain = word.removesuffix("s")
    plain = _SPELLINGS.get(plain, plain)
    if plain not in _PLAIN or width is not None:
        raise InvalidArgument(
            f"unknown transform {word!r}: expected identity, year, month, day, hour, bucket(n, …) or truncate(n, …)"
        )
    return parse_transform(plain)


def _transform_word(transform: Transform[Any, Any]) -> str:
    """The suffix of a partition field's name, as in Spark: `bucket` for `bucket[16]`, `trunc` for `truncate[4]`."""
    word = str(transform).partition("[")[0]
    return "trunc" if word == "truncate" else word
