"""Tables whose partition spec was replaced have all of their rows for every filter and statement."""

from __future__ import annotations

import pytest
from pyiceberg.transforms import BucketTransform

import trinitylake as tl


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("transform", ["v", "bucket(3, v)"])
@pytest.mark.parametrize("added", [None, "v"])
def test_rows_after_a_removed_partition_field_are_found(
    lake: tl.Lakehouse, version: str, transform: str, added: str | None
) -> None:
    """Rows are found by a column whose partition field was removed. Format version 1 replaces the field by a void
    field, whose value is NULL in every row and says nothing of the column."""
    lake.create_namespace("n")
    lake.create_table(
        "n.t", {"k": "int", "v": "int"}, partition_spec=[transform], properties={"format-version": version}
    )
    table = lake.table("n.t")
    table.append({"k": [1, 2, 3], "v": [1, -7, None]})
    with table.update_spec() as update:
        update.remove_field(table.partition_spec.fields[0].name)
    if added is not None:
        with table.update_spec() as update:
            update.add_field(added, BucketTransform(4), "added")
    table.append({"k": [4, 5, 6], "v": [1, -7, None]})
    for filter, keys in {"v = 1": [1, 4], "v < 0": [2, 5], "v IS NOT NULL": [1, 2, 4, 5], "v IS NULL": [3, 6]}.items():
        assert sorted(table.scan(filter).to_arrow()["k"].to_pylist()) == keys
        assert table.scan(filter).count() == len(keys)
        assert lake.sql(f"SELECT list(k ORDER BY k) FROM n.t WHERE {filter}").fetchone() == (keys,)
    result = table.upsert({"v": [-7], "k": [5]}, on="k")
    assert (result.rows_updated, result.rows_inserted) == (0, 0)
    table.maintenance.rewrite_manifests()
    assert table.delete("v = 1").rows_deleted == 2
    assert table.merge({"v": [-7]}, on="v").when_matched_delete().execute().rows_deleted == 2
    assert table.count() == 2


def with_name_of_dropped_field(lake: tl.Lakehouse, version: str, transform: str) -> tuple[tl.Table, str]:
    """The table `n.t` with a column that has the name of a dropped partition field. Returns also this name."""
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
    return table, name


@pytest.mark.parametrize("version", ["1", "2", "3"])
@pytest.mark.parametrize("transform", ["p", "bucket(4, p)"])
def test_a_column_takes_the_name_of_a_dropped_partition_field(lake: tl.Lakehouse, version: str, transform: str) -> None:
    """A new column can get the name of a dropped column whose removed partition field format version 1 keeps as `void`;
    Iceberg's Java allows this, too."""
    table, name = with_name_of_dropped_field(lake, version, transform)
    with table.update_spec() as update:
        update.add_field(name, "identity", name)
    table.append({"id": [3], name: ["b"]})
    for filter, ids in {f"{name} = 'b'": [2, 3], f"{name} IS NULL": [1]}.items():
        assert sorted(table.scan(filter).to_arrow()["id"].to_pylist()) == ids
        assert lake.sql(f"SELECT list(id ORDER BY id) FROM n.t WHERE {filter}").fetchone() == (ids,)
    assert table.delete(f"{name} = 'b'").rows_deleted == 2
    table.maintenance.rewrite_manifests()
    assert table.count() == 1
