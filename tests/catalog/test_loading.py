"""Loading the catalog: by `load`, by PyIceberg's `load_catalog`, from its configuration and the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, load

IMPLEMENTATION = {"py-catalog-impl": "trinitylake.iceberg.TrinityLakeCatalog"}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A lakehouse with one namespace, made by its second version."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("shop")
    return str(tmp_path / "lake")


@pytest.mark.parametrize("name", ["root", "uri", "warehouse"])
def test_pyiceberg_loads_it_by_properties(root: str, name: str) -> None:
    catalog = load_catalog("lake", **IMPLEMENTATION, **{name: root})
    assert isinstance(catalog, TrinityLakeCatalog)
    assert catalog.name == "lake"
    assert catalog.list_namespaces() == [("shop",)]


def test_the_environment_names_the_root(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MYLAKE__ROOT", root)
    assert load_catalog("mylake", **IMPLEMENTATION).list_namespaces() == [("shop",)]
    assert load(name="mylake").list_namespaces() == [("shop",)]


def test_a_configuration_file_names_root_and_version(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"catalog:\n  mylake:\n    root: {root}\n    version: 0\n"
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    assert load(name="mylake").list_namespaces() == []
    assert load(name="mylake", version=1).list_namespaces() == [("shop",)]


def test_the_call_wins_over_the_environment(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MYLAKE__ROOT", "/nowhere/at/all")
    assert load(root, name="mylake").list_namespaces() == [("shop",)]


def test_too_many_or_no_choices_are_refused(root: str) -> None:
    with pytest.raises(tl.InvalidArgument, match="not several"):
        load(root, version=0, timestamp="2026-01-01")
    with pytest.raises(tl.InvalidArgument, match="needs the root"):
        load(name="nobody-configured-this")
    with pytest.raises(tl.NotALakehouse):
        load(root + "-not")


def test_importing_trinitylake_does_not_import_pyiceberg() -> None:
    code = "import sys, trinitylake, trinitylake.iceberg; print([m for m in sys.modules if m.startswith('pyiceberg')])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout.strip() == "[]"
