"""Iceberg's Java loads all metadata that the server accepts, as iceberg-rust does."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pydantic import TypeAdapter
from pyiceberg.table.update import TableUpdate
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import trinitylake as tl
from rest.shop import with_tables
from rest.test_metadata_invariants import CURRENT, DEFAULTS, accepted_metadata, add_schema, column
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates


def refusal(spark: SparkSession, text: str) -> str | None:
    """What Iceberg's Java says against some metadata; None if it loads."""
    try:
        spark._jvm.org.apache.iceberg.TableMetadataParser.fromJson("file:///t/metadata/1.metadata.json", text)
    except (Py4JError, PySparkException) as error:
        return str(error)
    return None


def test_java_loads_all_accepted_metadata(
    spark: SparkSession, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_tables(lake, "shop.orders").table("shop.orders")
    accepted = 0
    for seed in range(30):
        for metadata, sent in accepted_metadata(table.iceberg.metadata, seed, monkeypatch):
            refused = refusal(spark, metadata.model_dump_json())
            assert refused is None, (refused, sent, metadata.model_dump_json())
            accepted += 1
    assert accepted > 100


@pytest.mark.parametrize("version", ["1", "2", "3"])
@pytest.mark.parametrize("transform", ["p", "bucket(4, p)"])
def test_java_reads_a_column_with_the_name_of_a_dropped_partition_field(
    spark: SparkSession, lake: tl.Lakehouse, version: str, transform: str
) -> None:
    lake.create_namespace("n")
    columns = {"id": "bigint", "p": "varchar"}
    table = lake.create_table("n.t", columns, partition_spec=[transform], properties={"format-version": version})
    table.append({"id": [1], "p": ["a"]})
    name = table.partition_spec.fields[0].name
    with table.update_spec() as update:
        update.remove_field(name)
    with table.update_schema() as update_schema:
        update_schema.delete_column("p")
    with table.update_schema() as update_schema:
        update_schema.add_column(name, "varchar")
    table.append({"id": [2], name: ["b"]})
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
