"""Definition files: round trips, errors for damaged files, preserved unknown fields."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from packaging.requirements import Requirement
from packaging.version import Version

from trinitylake import definitions
from trinitylake.definitions import (
    Column,
    LakehouseDef,
    NamespaceDef,
    Schema,
    TableDef,
    ViewDef,
    files,
    new_namespace_def,
    new_table_def,
    new_view_def,
    parse_distributed_transaction_def,
    parse_lakehouse_def,
    parse_namespace_def,
    parse_table_def,
    parse_view_def,
    serialize,
    trinitylake_pb2,
)
from trinitylake.errors import CorruptFile, InvalidArgument, UnsupportedVersion

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Schema(
    [Column("id", "bigint", nullable=False, id=1), Column("name", "varchar(20)", doc="as given", id=2)], "id"
)


def table_def(**given: Any) -> definitions.TableDef:
    definition = new_table_def(properties={"owner": "ops"}, **given)
    definition.schema.CopyFrom(SCHEMA.to_definition())
    definition.primary_keys.extend(SCHEMA.primary_key)
    return definition


def test_a_namespace_is_read_back() -> None:
    definition = new_namespace_def(properties={"owner": "ops"})
    assert parse_namespace_def(serialize(definition)) == definition
    assert uuid.UUID(definition.id).version == 4
    assert new_namespace_def().id != definition.id
    assert new_namespace_def(definition.id).id == definition.id


def test_a_table_is_read_back() -> None:
    definition = table_def(format_properties={"metadata_location": "ns/t/metadata/0.metadata.json"})
    definition.sort_keys.append(definitions.SortKey(column="id", descending=True))
    assert definition.table_type == definitions.MANAGED
    read = parse_table_def(serialize(definition))
    assert read == definition
    assert Schema.from_definition(read.schema, tuple(read.primary_keys)) == SCHEMA
    assert new_table_def(table_type="external").table_type == definitions.EXTERNAL


def test_a_view_is_read_back() -> None:
    definition = new_view_def({"spark": "SELECT 1", "trino": "SELECT 1"}, schema=SCHEMA, default_namespace="nyc")
    assert parse_view_def(serialize(definition)) == definition
    assert [one.dialect for one in definition.representations] == ["spark", "trino"]


@pytest.mark.parametrize("representations", [{}, {"spark": " "}, {"": "SELECT 1"}])
def test_a_view_without_a_query_is_refused(representations: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        new_view_def(representations)


def test_equal_definitions_have_equal_bytes() -> None:
    one = new_namespace_def(str(uuid.UUID(int=1)), {"a": "1", "b": "2", "c": "3"})
    other = new_namespace_def(str(uuid.UUID(int=1)), {"c": "3", "b": "2", "a": "1"})
    assert serialize(one) == serialize(other)


@pytest.mark.parametrize(
    ("parse", "definition"),
    [
        (parse_lakehouse_def, LakehouseDef(name="lake", order=128)),
        (parse_namespace_def, new_namespace_def(properties={"a": "b"})),
        (parse_table_def, table_def()),
        (parse_view_def, new_view_def({"spark": "SELECT 1"})),
        (parse_distributed_transaction_def, definitions.DistributedTransactionDef(id="etl-42")),
    ],
    ids=["lakehouse", "namespace", "table", "view", "transaction"],
)
def test_fields_of_a_later_library_survive_a_rewrite(parse: object, definition: Message) -> None:
    unknown = b"\xfa\x3e\x05later"  # field 1007, five bytes
    assert callable(parse)
    read = parse(serialize(definition) + unknown)
    for field in ("properties", "representations"):
        if field == "properties" and hasattr(read, field):
            read.properties["changed"] = "yes"
    assert unknown in serialize(read)


def test_every_cut_and_every_flipped_byte_is_read_or_refused() -> None:
    data = serialize(table_def())
    damaged = [data[:length] for length in range(len(data))]
    for position in range(len(data)):
        for bit in (1, 128):
            damaged.append(data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :])
    refused = 0
    for one in damaged:
        try:
            Schema.from_definition(parse_table_def(one, "t.binpb").schema)
        except (CorruptFile, UnsupportedVersion):
            refused += 1
    assert refused > len(data) / 2


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 10, b"PAR1", b"\x0a\x03abc"])
@pytest.mark.parametrize("parse", [parse_namespace_def, parse_table_def, parse_view_def])
def test_what_is_not_a_definition_is_corrupt(parse: object, data: bytes) -> None:
    assert callable(parse)
    with pytest.raises(CorruptFile, match=r"a/b\.binpb") as caught:
        parse(data, "a/b.binpb")
    assert caught.value.path == "a/b.binpb"


def test_a_file_over_the_limit_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_SIZE_BYTES", 100)
    definition = new_namespace_def(properties={"a": "x" * 200})
    with pytest.raises(CorruptFile, match="limit of 100"):
        parse_namespace_def(definition.SerializeToString())
    with pytest.raises(InvalidArgument, match="limit of 100"):
        serialize(definition)


def field(number: int, data: bytes) -> bytes:
    """Encode a length-delimited protobuf field."""
    length, size = b"", len(data)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def test_a_schema_nested_too_deep_is_refused() -> None:
    data = TableDef(id=str(uuid.uuid4())).SerializeToString()
    for levels, readable in ((20, True), (500, False)):
        column = trinitylake_pb2.Column(name="leaf", type="INT4").SerializeToString()
        for _ in range(levels):
            column = b"\x12\x01l\x18\x12" + field(9, column)
        table = data + field(2, field(1, column))
        if readable:
            assert len(Schema.from_definition(parse_table_def(table).schema).columns) == 1
        else:
            with pytest.raises(CorruptFile):
                parse_table_def(table, "deep.binpb")


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="format version 1"):
        parse_lakehouse_def(serialize(LakehouseDef(name="lake", major_version=1)))
    with pytest.raises(UnsupportedVersion):
        parse_table_def(serialize(TableDef(id=str(uuid.uuid4()), table_type=9)))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion, match="type number 99"):
        Schema.from_definition(trinitylake_pb2.Schema(columns=[trinitylake_pb2.Column(name="x", type=99)]))  # type: ignore[arg-type]


def test_properties_are_text() -> None:
    for properties in ({"a": 1}, {1: "a"}, {"": "a"}):
        with pytest.raises(InvalidArgument, match="strings"):
            new_namespace_def(properties=properties)  # type: ignore[arg-type]


def test_public_field_numbers_stand() -> None:
    """Numbers of published fields never change: older files contain them."""

    def numbers(message: type[Message]) -> dict[str, int]:
        return {field.name: field.number for field in message.DESCRIPTOR.fields}

    assert numbers(NamespaceDef) == {"id": 1, "properties": 2}
    assert numbers(ViewDef) == {"id": 1, "schema": 2, "representations": 3, "default_namespace": 4, "properties": 5}
    table = numbers(TableDef)
    assert (table["schema"], table["table_type"], table["format_properties"], table["properties"]) == (2, 8, 10, 11)
    assert 7 not in table.values()
    lakehouse = numbers(LakehouseDef)
    assert (lakehouse["order"], lakehouse["exported_snapshots"], lakehouse["default_isolation"]) == (3, 12, 15)
    column = numbers(trinitylake_pb2.Column)
    assert (column["struct_fields"], column["list_element"], column["scale"]) == (6, 9, 12)


def test_generated_code_runs_with_every_protobuf_that_may_be_installed() -> None:
    """The generated code required `protobuf>=7.36`, because the newest compiler had generated it. Then the package
    could not be installed together with dbt-core, which requires a version below 7.

    Code that is generated for one major version runs with this version, from its own release on, and with the next
    major version. (`make lint` compares the code with the proto file.)
    """
    source = Path(trinitylake_pb2.__file__).read_text()
    numbers = re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),", source)
    assert numbers is not None
    generated = Version(".".join(numbers.groups()))
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [asked] = [one for one in map(Requirement, dependencies) if one.name == "protobuf"]
    bounds = {part.operator: Version(part.version) for part in asked.specifier}
    assert set(bounds) == {">=", "<"}
    assert generated <= bounds[">="]
    assert bounds["<"] == Version(str(generated.major + 2))
    for used_beside_us in ("6.30.0", "6.33.6", "7.36.2"):
        assert asked.specifier.contains(used_beside_us)


def test_importing_definitions_loads_neither_pyiceberg_nor_pyarrow() -> None:
    code = "import sys, trinitylake.definitions; print([m for m in ('pyiceberg', 'pyarrow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
