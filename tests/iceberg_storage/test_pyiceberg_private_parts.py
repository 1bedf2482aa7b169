"""Private parts of PyIceberg that the package uses: each of them is listed and exists, and no other is used.

A release of PyIceberg may change its private parts without notice. This test names them before other tests fail for a
reason that is hard to find.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trinitylake
from trinitylake.iceberg_storage import extended_pyiceberg

PACKAGE = Path(trinitylake.__file__).parent
EXTENDED = Path(extended_pyiceberg.__file__).parent
LIST = inspect.getdoc(extended_pyiceberg) or ""

#: Parameters of PyIceberg's functions by their names below `pyiceberg.`; None for parts that are not functions.
EXPECTED: dict[str, str | None] = {
    "catalog.rest:RestCatalog._create_session": "self",
    "catalog.rest:RestCatalog._fetch_config": "self",
    "catalog.rest:RestCatalog._load_file_io": "self properties location",
    "table:Transaction._apply": "self updates requirements",
    "table:Table._do_commit": "self updates requirements",
    "table.update:_apply_table_update": "update base_metadata context",
    "table.update:_TableMetadataUpdateContext": "",
    "io.pyarrow:_check_pyarrow_schema_compatible": (
        "requested_schema provided_schema downcast_ns_timestamp_to_us format_version"
    ),
    "catalog:_ENV_CONFIG": None,
    "catalog:MetastoreCatalog._create_staged_table": (
        "self identifier schema location partition_spec sort_order properties"
    ),
    "catalog:MetastoreCatalog._get_updated_props_and_update_summary": "self current_properties removals updates",
    "catalog:Catalog._convert_schema_if_needed": "schema format_version",
    "catalog:Catalog._delete_old_metadata": "io base metadata",
}
LISTED = set(re.findall(r"\b[a-z][\w.]*:\w+(?:\.\w+)?(?=  )", LIST.partition("Attributes that")[0]))
ATTRIBUTES = {
    (owner, name)
    for owner, names in re.findall(r"([a-z][\w.]*:\w+)  +((?:_\w+ ?)+)$", LIST.partition("Attributes that")[2], re.M)
    for name in names.split()
}


def found(name: str) -> Any:
    module, _, path = name.partition(":")
    one: Any = importlib.import_module(f"pyiceberg.{module}")
    for part in path.split("."):
        one = getattr(one, part)
    return one


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_abc_impl", "_is_protocol")


def private_imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg."):
            module = str(node.module).removeprefix("pyiceberg.")
            yield from (f"{module}:{alias.name}" for alias in node.names if is_private(alias.name))


def test_the_list_and_the_expectations_name_the_same_parts() -> None:
    assert set(EXPECTED) == LISTED
    assert len(ATTRIBUTES) == 3


@pytest.mark.parametrize("name", EXPECTED)
def test_pyiceberg_has_the_part_with_these_parameters(name: str) -> None:
    parameters = EXPECTED[name]
    part = found(name)
    if parameters is not None:
        assert list(inspect.signature(part).parameters) == parameters.split()


@pytest.mark.parametrize(("owner", "name"), sorted(ATTRIBUTES))
def test_pyiceberg_s_objects_have_the_attribute(owner: str, name: str) -> None:
    source = "".join(
        inspect.getsource(ancestor) for ancestor in found(owner).__mro__ if ancestor.__module__.startswith("pyiceberg")
    )
    assert re.search(rf"\bself\.{name}\b[^=\n]*=(?!=)|^    {name}: |def {name}\(", source, re.M)


def test_private_functions_are_imported_in_one_room_and_listed() -> None:
    for file in PACKAGE.rglob("*.py"):
        imported = set(private_imports(file))
        if file.parent != EXTENDED and file != EXTENDED.parent / "pyiceberg_patches.py":
            assert not imported, f"{file}: {imported}"
        else:
            # A class is listed by the members that are used.
            unlisted = {
                one for one in imported if not any(name == one or name.startswith(f"{one}.") for name in LISTED)
            }
            assert not unlisted, f"{file.name}: {unlisted}"


def test_methods_that_override_private_ones_of_pyiceberg_stand_in_the_room_and_are_listed() -> None:
    overridden = set()
    for layer in ("iceberg_storage", "tables", "iceberg", "rest"):
        package = importlib.import_module(f"trinitylake.{layer}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for one in vars(importlib.import_module(module.name)).values():
                if not inspect.isclass(one) or one.__module__ != module.name:
                    continue
                for name in filter(is_private, vars(one)):
                    for base in one.__mro__[1:]:
                        if base.__module__.startswith("pyiceberg.") and name in vars(base):
                            assert EXTENDED.name in module.name, f"{module.name}: {one.__name__}.{name}"
                            overridden.add(f"{base.__module__.removeprefix('pyiceberg.')}:{base.__name__}.{name}")
                            break
    # A mixin has no base class in PyIceberg.
    assert overridden | {"catalog:Catalog._delete_old_metadata"} == {
        name for name in LISTED if re.search(rf"{re.escape(name)} +overridden", LIST)
    }


def test_a_private_part_that_is_gone_would_be_noticed() -> None:
    with pytest.raises(AttributeError):
        found("table:Table._no_such_part")
