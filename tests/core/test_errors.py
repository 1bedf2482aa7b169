"""The exception classes: documented, stable, picklable, and each raised by some call."""

from __future__ import annotations

import importlib.metadata
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trinitylake as tl
from trinitylake import errors
from trinitylake.cli.app import exit_code

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def error_classes() -> dict[str, type[tl.TrinityLakeError]]:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {
        name: value
        for name, value in found.items()
        if issubclass(value, tl.TrinityLakeError) and value is not tl.TrinityLakeError
    }


def documented() -> dict[str, tuple[str, int]]:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d) \|", DOCUMENT.read_text(), re.M)
    return {name: (kind, int(code)) for name, kind, code in rows}


def test_documented_table_of_errors_equals_the_code() -> None:
    assert documented() == {name: (error.kind, exit_code(error("x"))) for name, error in error_classes().items()}


def test_every_error_is_exported_and_has_its_own_kind() -> None:
    for name, error in error_classes().items():
        assert getattr(tl, name) is error
        assert error.kind == re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        assert error.__doc__


def test_errors_print_no_control_characters_of_terminals(lake: tl.Lakehouse) -> None:
    """A traceback changed the colour of the terminal, because messages contain names, and rows that DuckDB quotes."""
    hostile = "\x1b[31mred\u202e"
    for statement, parameters in (
        (f'SELECT * FROM shop."{hostile}"', None),
        (f"SELECT {hostile}", None),
        ("SELECT CAST(? AS INTEGER)", [hostile]),
        (f'SELECT * FROM shop."{hostile * 2000}"', None),
    ):
        with pytest.raises(tl.TrinityLakeError) as caught:
            lake.sql(statement, parameters).fetchall()
        text = str(caught.value)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 2500
    assert str(tl.InvalidArgument("one\n\ttwo")) == "one\n\ttwo"
    with pytest.raises(tl.InvalidName) as caught:
        lake.tags.create("x" * 10_000)
    assert len(str(caught.value)) < 250


def test_an_error_prints_its_message_alone_and_survives_pickling() -> None:
    for error in error_classes().values():
        raised = pickle.loads(pickle.dumps(error("what went wrong")))
        assert (type(raised), str(raised), raised.message) == (error, "what went wrong", "what went wrong")
    conflict = tl.CommitConflict("lost", keys=["table a.t"], winners=[errors.Winner(3, "id", "message", "author")])
    again = pickle.loads(pickle.dumps(conflict))
    assert (again.keys, again.winners) == (conflict.keys, conflict.winners)
    assert pickle.loads(pickle.dumps(tl.CorruptFile("x", path="a/b"))).path == "a/b"
    assert pickle.loads(pickle.dumps(tl.StorageError("x", retryable=True))).retryable is True


def test_errors_are_caught_as_the_builtins_they_specialise() -> None:
    for error, builtin in (
        (tl.ObjectNotFound, LookupError),
        (tl.VersionNotFound, LookupError),
        (tl.VersionExpired, LookupError),
        (tl.InvalidName, ValueError),
        (tl.InvalidLocation, ValueError),
        (tl.InvalidArgument, ValueError),
        (tl.PermissionDenied, PermissionError),
    ):
        assert issubclass(error, builtin)


@pytest.mark.parametrize("settings", [{"order": 1}, {"order": -1}, {"order": "x"}, {"colour": 3}, {"order": 2**40}])
def test_invalid_setting_is_refused(root: str, settings: dict[str, int]) -> None:
    with pytest.raises(tl.InvalidArgument):
        tl.create(root, **settings)  # type: ignore[arg-type]


def test_an_unknown_isolation_is_refused(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument, match="chaos"):
        lake.begin(isolation="chaos")  # type: ignore[arg-type]


def test_properties_that_are_not_text_are_refused(lake: tl.Lakehouse) -> None:
    with pytest.raises(tl.InvalidArgument):
        lake.create_namespace("nyc", {"a": 1})  # type: ignore[dict-item]


def test_a_store_that_does_not_answer_is_a_storage_error_worth_another_try() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "allow_http": "true", "access_key_id": "a", "secret_access_key": "b"}
    options["max_retries"] = "0"
    with pytest.raises(tl.StorageError) as caught:
        tl.open("s3://bucket/lake", storage_options=options)
    assert caught.value.retryable


def test_an_unknown_storage_option_is_refused_by_name() -> None:
    with pytest.raises(tl.InvalidArgument, match="colour"):
        tl.open("s3://bucket/lake", storage_options={"colour": "red"})


def test_importing_loads_neither_pyiceberg_nor_the_command_line_nor_a_thread() -> None:
    code = (
        "import sys, threading, trinitylake as tl\n"
        "heavy = {'pyiceberg', 'typer', 'rich', 'pandas', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
        "assert tl.__version__ and tl.Schema and tl.Column and tl.core and tl.Table\n"
        "assert all(getattr(tl, name) is not None for name in tl.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert tl.__version__ == importlib.metadata.version("trinitylake")
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tl.nonsense


def test_opening_a_table_imports_no_pandas(tmp_path: Path) -> None:
    """An import at the top of the compaction module cost a second in each process, also in Spark's workers."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("nyc")
    lake.create_table("nyc.flights", tl.Schema([tl.Column("id", "bigint")])).append({"id": [1, 2, 3]})
    code = (
        "import sys, trinitylake as tl\n"
        f"table = tl.open({lake.uri!r}).table('nyc.flights')\n"
        "assert len(list(table.scan(filter='id > 1').iceberg.plan_files())) == 1\n"
        "assert table.maintenance and table.iceberg.metadata.current_snapshot()\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
