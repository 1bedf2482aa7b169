"""Iceberg's Java loads all metadata that the server accepts, as iceberg-rust does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table.update import TableUpdate
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from test_partition_specs import with_name_of_dropped_field

import trinitylake as tl
from rest import test_metadata_invariants
from rest.shop import with_tables
from rest.test_metadata_invariants import CURRENT, DEFAULTS, add_schema, add_spec, column, part
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates


def refusal(spark: SparkSession, text: str) -> str | None:
    """The error of Iceberg's Java for metadata; None if it can load the metadata."""
    try:
        spark._jvm.org.apache.iceberg.TableMetadataParser.fromJson("file:///t/metadata/1.metadata.json", text)
    except (Py4JError, PySparkException) as error:
        return str(error)
    return None


VERSION_3 = {"action": "upgrade-format-version", "format-version": 3}
TYPES = [
    *(
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "decimal(9,2)",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "string",
    ),
    *("uuid", "fixed[4]", "binary", "timestamp_ns", "timestamptz_ns", "unknown", "variant"),
]
VALUES = [None, 1, 1.5, True, "a", "1.50", "2020-01-01", "00ff00ff"]
TRANSFORMS = ["identity", "bucket[4]", "truncate[3]", "void", "year", "month", "day", "hour", "x[1]"]


class Wide:
    """Random updates with columns of all types, also nested, with default values, and with all transforms."""

    def __init__(self) -> None:
        self.narrow = test_metadata_invariants.random_update

    def __call__(self, chosen: random.Random, metadata: dict[str, Any]) -> dict[str, Any]:
        draw = chosen.random()
        columns = list(Schema.model_validate(metadata["schemas"][-1]).field_ids)
        last = metadata["last-column-id"]
        if draw < 0.3:
            kept = [one for one in metadata["schemas"][-1]["fields"] if chosen.random() < 0.9]
            return add_schema(*kept, self.column(chosen, itertools.count(last + 1)))
        if draw < 0.4 and columns:
            fields = [part(chosen.choice("abp"), chosen.choice(TRANSFORMS), chosen.choice(columns), None)]
            return add_spec(*fields)
        if draw < 0.5 and columns:
            order = {"source-id": chosen.choice(columns), "transform": chosen.choice(TRANSFORMS)}
            fields = [{**order, "direction": "asc", "null-order": "nulls-first"}]
            return {"action": "add-sort-order", "sort-order": {"fields": fields}}
        if draw < 0.6:
            return chosen.choice([CURRENT, {"action": "set-default-spec", "spec-id": -1}, VERSION_3])
        return self.narrow(chosen, metadata)

    def column(self, chosen: random.Random, ids: Iterator[int], depth: int = 0) -> dict[str, Any]:
        made = column(next(ids), chosen.choice(["a", "b", "p", "A", "p.q", "ä"]), self.type(chosen, ids, depth))
        if isinstance(made["type"], str) and chosen.random() < 0.3:
            made |= {"initial-default": chosen.choice(VALUES), "write-default": chosen.choice(VALUES)}
        return made | {"required": chosen.random() < 0.1}

    def type(self, chosen: random.Random, ids: Iterator[int], depth: int) -> Any:
        draw = chosen.random() if depth < 2 else 1
        if draw < 0.15:
            return {"type": "struct", "fields": [self.column(chosen, ids, depth + 1)]}
        if draw < 0.25:
            element = self.type(chosen, ids, depth + 1)
            return {"type": "list", "element-id": next(ids), "element": element, "element-required": draw < 0.2}
        return chosen.choice(TYPES)


@pytest.mark.parametrize("is_wide", [False, True])
def test_java_loads_all_accepted_metadata(
    spark: SparkSession, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, is_wide: bool
) -> None:
    """Iceberg's Java can load all metadata that the server accepts, also all partition specs and default values."""
    table = with_tables(lake, "shop.orders").table("shop.orders")
    if is_wide:
        monkeypatch.setattr(test_metadata_invariants, "random_update", Wide())
    accepted = 0
    for seed in range(30):
        for metadata, sent in test_metadata_invariants.accepted_metadata(table.iceberg.metadata, seed, monkeypatch):
            refused = refusal(spark, metadata.model_dump_json())
            assert refused is None, (refused, sent, metadata.model_dump_json())
            accepted += 1
    assert accepted > 100


@pytest.mark.parametrize("version", ["1", "2", "3"])
@pytest.mark.parametrize("transform", ["p", "bucket(4, p)"])
def test_java_reads_a_column_with_the_name_of_a_dropped_partition_field(
    spark: SparkSession, lake: tl.Lakehouse, version: str, transform: str
) -> None:
    table, _ = with_name_of_dropped_field(lake, version, transform)
    assert refusal(spark, table.iceberg.metadata.model_dump_json()) is None


@pytest.mark.parametrize("type", DEFAULTS)
def test_java_reads_default_values(spark: SparkSession, lake: tl.Lakehouse, type: str) -> None:
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint"}, properties={"format-version": "3"})
    values = {"initial-default": DEFAULTS[type][1], "write-default": DEFAULTS[type][1]}
    update = add_schema(column(1, "id"), column(2, "c", type) | values)
    parsed: list[TableUpdate] = TypeAdapter(list[TableUpdate]).validate_python([update, CURRENT])
    metadata = apply_updates(table.iceberg.metadata, parsed)
    assert refusal(spark, metadata.model_dump_json()) is None
