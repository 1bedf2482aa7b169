"""Errors for missing optional dependencies."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from trinitylake.base.optional_dependencies import _EXTRA_OF, NotInstalled, optional_dependency
from trinitylake.errors import InvalidArgument

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

#: Program that runs statements with these libraries hidden, and prints the error of each statement.
PROGRAM = """
import json, sys
from importlib.machinery import PathFinder

absent, statements = json.loads(sys.stdin.read())

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
import trinitylake as tl
from trinitylake.errors import TrinityLakeError

lake = tl.create(sys.argv[1], durability="none")
lake.create_namespace("shop")
table = lake.create_table("shop.orders", {"id": "bigint"})
found = []
for statement in statements:
    try:
        exec(statement)
    except Exception as error:
        is_ours, is_import_error = isinstance(error, TrinityLakeError), isinstance(error, ImportError)
        found.append([type(error).__name__, is_ours, is_import_error, str(error)])
    else:
        found.append(None)
print(json.dumps(found))
"""
#: Statements that need a library, and the package that the error must name.
NEEDS = {
    "import trinitylake.rest": "'trinitylake[rest]'",
    "from trinitylake.rest import serve": "'trinitylake[rest]'",
    "tl.rest.serve(lake)": "'trinitylake[rest]'",
    "import trinitylake.lineage": "'trinitylake[lineage]'",
    "import trinitylake.spark": "'trinitylake[spark]'",
    "tl.spark.connect(lake)": "'trinitylake[spark]'",
    "lake.sql('SELECT 1')": "'trinitylake[sql]'",
    "lake.sql('SELECT ?', parameters=[1])": "'trinitylake[sql]'",
    "lake.at().sql('SELECT 1')": "'trinitylake[sql]'",
    "lake.begin().sql('DELETE FROM shop.orders')": "'trinitylake[sql]'",
    "table.scan().to_duckdb('orders')": "'trinitylake[sql]'",
    "table.scan().to_pandas()": "pandas",
    "table.scan().to_polars()": "polars",
    "table.scan().to_polars(lazy=True)": "polars",
    "from trinitylake.cli.demo import data_folder; data_folder()": "'trinitylake[demo]'",
    "from trinitylake.cli.sql_shell import split_statements; split_statements('SELECT 1')": "'trinitylake[sql]'",
}


def test_missing_library_error_names_the_package_to_install(tmp_path: Path) -> None:
    """`trinitylake.rest.serve` without its extra raised only "No module named 'uvicorn'"."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
        input=json.dumps([list(_EXTRA_OF), list(NEEDS)]),
        capture_output=True,
        text=True,
        check=True,
    )
    for (statement, wanted), found in zip(NEEDS.items(), json.loads(done.stdout), strict=True):
        assert found is not None, statement
        kind, is_ours, is_import_error, message = found
        assert (kind, is_ours, is_import_error) == ("NotInstalled", True, True), (statement, message)
        assert message.endswith(f"which is not installed: pip install {wanted}"), (statement, message)


def test_each_extra_installs_its_library() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    distributions = metadata.packages_distributions()
    for module, extra in _EXTRA_OF.items():
        if extra is None:
            continue
        wanted = " ".join(extras[extra]).replace("pyjwt[crypto]", "pyjwt cryptography").lower()
        wanted = wanted.replace("openlineage-python", "openlineage-python attrs")
        names = distributions.get(module, [module])
        assert any(name.lower().replace("_", "-") in wanted for name in names), (module, extra)


def test_unrelated_import_error_is_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError, match="elsewhere") as raised, optional_dependency("this test"):
        import elsewhere  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(raised.value, InvalidArgument)
    with pytest.raises(NotInstalled, match="the outer needs polars"), optional_dependency("unheard"):
        raise NotInstalled("the outer needs polars")
