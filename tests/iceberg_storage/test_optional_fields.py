"""Tables of format version 1 without fields that are optional there."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.schema import Schema

import trinitylake as tl
from trinitylake.iceberg_storage.manifests import manifest_list
from trinitylake.iceberg_storage.metadata import cache

ADDED_SNAPSHOT_ID = 503


def local(uri: str) -> Path:
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(uri).path))


def registered(
    lake: tl.Lakehouse, change: Callable[[dict[str, Any]], object], spec: list[str] | None = None
) -> tl.Table:
    """Register `n.t`, which has the rows 1, 2 and 3, with changed metadata of format version 1."""
    lake.create_namespace("n")
    properties = {"format-version": "1"}
    table = lake.create_table("n.s", {"k": "bigint"}, partition_spec=spec, properties=properties)
    table.append({"k": [1, 2, 3]})
    source = local(lake.table("n.s").iceberg.metadata_location)
    content = json.loads(source.read_bytes())
    assert content["format-version"] == 1
    change(content)
    given = source.with_name(f"given-{source.name}")
    given.write_text(json.dumps(content))
    lake.register({"kind": ["table"], "namespace": ["n"], "name": ["t"], "metadata_location": [given.as_uri()]})
    cache.clear()
    return tl.open(lake.uri).table("n.t")


def keys(lake: tl.Lakehouse) -> list[int]:
    cache.clear()
    return sorted(tl.open(lake.uri).table("n.t").scan().to_arrow()["k"].to_pylist())


def test_table_without_uuid_has_the_id_of_its_definition(tmp_path: Path) -> None:
    """With a random UUID in each read, the check of its identity would fail."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    table = registered(lake, lambda content: content.pop("table-uuid"))
    assert keys(lake) == [1, 2, 3]
    assert lake.maintenance.fsck("all", files=True).is_sound
    transaction = lake.begin(id="saved")
    transaction.table("n.t").append({"k": [4]})
    transaction.save()
    tl.open(lake.uri).table("n.t").append({"k": [5]})
    cache.clear()
    tl.open(lake.uri).resume("saved").commit()
    table.delete("k = 1")
    assert keys(lake) == [2, 3, 4, 5]
    lake.export(str(tmp_path / "copy"), mode="minimal")
    assert keys(tl.open(str(tmp_path / "copy"))) == [2, 3, 4, 5]
    assert lake.maintenance.fsck("all", files=True).is_sound


def test_partition_fields_without_ids_have_those_from_1000(tmp_path: Path) -> None:
    """Partition fields without ids, as before partition evolution, get ids from 1000 on."""

    def as_before(metadata: dict[str, Any]) -> None:
        (spec,) = metadata.pop("partition-specs")
        metadata |= {"partition-spec": spec["fields"], "schema": metadata.pop("schemas")[0]}
        for name in ("current-schema-id", "default-spec-id", "last-partition-id", "sort-orders", "table-uuid", "refs"):
            metadata.pop(name, None)
        for field in spec["fields"]:
            del field["field-id"]

    lake = tl.create(str(tmp_path / "lake"), durability="none")
    table = registered(lake, as_before, ["truncate(10, k)", "bucket(4, k)"])
    assert [field.field_id for field in table.partition_spec.fields] == [1000, 1001]
    table.append({"k": [-1, 20]})
    assert table.scan("k > 2").count() == 2
    table.delete("k = 20")
    table.maintenance.compact(min_files=1)
    assert keys(lake) == [-1, 1, 2, 3]
    assert lake.maintenance.fsck("all", files=True).is_sound


def test_table_of_format_version_2_without_uuid_is_not_registered(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    lake.create_table("n.s", {"k": "bigint"})
    source = local(lake.table("n.s").iceberg.metadata_location)
    content = json.loads(source.read_bytes())
    del content["table-uuid"]
    given = source.with_name(f"given-{source.name}")
    given.write_text(json.dumps(content))
    with pytest.raises(tl.TrinityLakeError, match="table-uuid is missing"):
        lake.register({"kind": ["table"], "namespace": ["n"], "name": ["t"], "metadata_location": [given.as_uri()]})


def test_manifest_list_without_added_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")

    def rewrite_list(content: dict[str, Any]) -> None:
        metadata = lake.table("n.s").iceberg.metadata
        snapshot, io = metadata.current_snapshot(), lake.table("n.s").iceberg.io
        assert snapshot is not None
        manifests = manifest_list.read_list(io, snapshot)
        for manifest in manifests:
            manifest[manifest_list._ADDED_SNAPSHOT_ID] = None
        former = MANIFEST_LIST_FILE_SCHEMAS[1]
        fields = [
            one.model_copy(update={"required": False}) if one.field_id == ADDED_SNAPSHOT_ID else one
            for one in former.fields
        ]
        location = snapshot.manifest_list.replace("snap-", "snap-0")
        with monkeypatch.context() as patch:
            patch.setitem(MANIFEST_LIST_FILE_SCHEMAS, 1, Schema(*fields))
            manifest_list._list_writer.cache_clear()
            manifest_list.write_list(io, location, metadata, manifests, snapshot.snapshot_id, None)
        manifest_list._list_writer.cache_clear()
        content["snapshots"][0]["manifest-list"] = location

    table = registered(lake, rewrite_list)
    assert keys(lake) == [1, 2, 3]
    table.append({"k": [4]})
    table.delete("k = 1")
    assert keys(lake) == [2, 3, 4]
    assert lake.maintenance.fsck("all", files=True).is_sound
