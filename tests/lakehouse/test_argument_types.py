"""Every public method with arguments of wrong types: an error of this library, and no change."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo

import trinitylake as tl

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3.5,
    float("nan"),
    10**30,
    -(10**30),
    "",
    "1",
    "a.t",
    "no such thing",
    "a" * 300,
    "\ud800",
    "\0",
    b"bytes",
    object(),
    [],
    [None],
    ["a", 1],
    {},
    {"a": 1},
    {1: "a"},
    (),
    ("a", "t"),
    ("a", None),
    {"a"},
    Decimal(1),
    datetime(1, 1, 1),
    datetime(9999, 12, 31),
    Path("/nowhere/at/all"),
    pa.table({"x": [1]}),
    len,
    int,
]

#: A valid value for each required parameter.
GOOD: dict[str, Any] = {
    "before": 0,
    "catalog_properties": {"type": "in-memory"},
    "check": "SELECT true",
    "data": {"x": [1]},
    "filter": "x = 1",
    "id": "job",
    "identifier": "a.t",
    "metadata_location": "file:///nowhere/x.metadata.json",
    "new_identifier": "a.u",
    "properties": {"a": "b"},
    "query": "SELECT * FROM a.t",
    "schema": {"x": "bigint"},
    "since": 0,
    "sql": "SELECT 1",
    "table_name": "t",
    "transaction_id": "job",
    "uri": "memory://odd",
    "version": 1,
}

#: Words of Python and of libraries about their own internals, which do not help a caller.
FOREIGN = re.compile(
    r"argument '\w+'|cannot be converted|object has no attribute|unhashable|not iterable|positional argument|"
    r"is not an instance of|not supported between|takes \d|not subscriptable|unsupported operand|codec can't|"
    r"int too big"
)

#: Methods that need another catalog or are context managers.
LEFT_OUT = {"import_catalog", "register", "update_schema", "update_spec"}
numbers = itertools.count()


def new_lake() -> tl.Lakehouse:
    lake = tl.create(f"memory://odd-{next(numbers)}")
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a.t", {"x": "bigint"}, primary_key="x").append({"x": [1]})
        txn.create_view("a.v", "SELECT 1")
    return lake


HOLDERS: dict[str, Callable[[tl.Lakehouse], Any]] = {
    "lakehouse": lambda lake: lake,
    "maintenance": lambda lake: lake.maintenance,
    "tags": lambda lake: lake.tags,
    "transactions": lambda lake: lake.transactions,
    "transaction": lambda lake: lake.begin(),
    "version": lambda lake: lake.at(),
    "table": lambda lake: lake.table("a.t"),
    "table of a transaction": lambda lake: lake.begin().table("a.t"),
    "table of a version": lambda lake: lake.at().table("a.t"),
    "scan": lambda lake: lake.table("a.t").scan(),
    "view": lambda lake: lake.view("a.v"),
    "query": lambda lake: lake.sql("SELECT * FROM a.t"),
}


def methods() -> Iterator[tuple[str, str]]:
    """All public methods with parameters, of all classes that users hold."""
    lake = new_lake()
    for kind, hold in HOLDERS.items():
        for name, member in inspect.getmembers(type(hold(lake)), inspect.isfunction):
            if not name.startswith("_") and name not in LEFT_OUT and len(inspect.signature(member).parameters) > 1:
                yield kind, name


def calls(function: Callable[..., Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls with each odd value for each parameter, and valid values for the others."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind != one.VAR_KEYWORD]
    required = [one for one in parameters if one.default is one.empty and one.kind != one.VAR_POSITIONAL]
    good = {one.name: GOOD.get(one.name, "x") for one in required}
    for parameter, value in itertools.product(parameters, ODD):
        if parameter.name == "progress" and callable(value):  # the callback is called, and its error is raised
            continue
        if parameter.kind == parameter.VAR_POSITIONAL:
            yield (*good.values(), value), {}
        else:
            yield (), good | {parameter.name: value}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), list(methods()))
def test_arguments_of_wrong_types_raise_invalid_argument(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of wrong types raise `InvalidArgument`. Most of them raised errors of Python, such as `OverflowError:
    can't convert negative int to unsigned` for the version -1."""
    monkeypatch.chdir(tmp_path)
    complaints = []
    holder = HOLDERS[kind](new_lake())
    for args, kwargs in calls(getattr(holder, name)):
        if not getattr(holder, "is_open", True):
            holder = HOLDERS[kind](new_lake())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = getattr(holder, name)(*args, **kwargs)
                if isinstance(result, Iterator):
                    list(itertools.islice(result, 5))
        except tl.TrinityLakeError as error:
            if not str(error) or FOREIGN.search(str(error)) or len(str(error)) > 1000:
                complaints.append((args, kwargs, error))
        except Exception as error:
            complaints.append((args, kwargs, error))
    assert complaints == []


@pytest.mark.parametrize("function", [tl.create, tl.open], ids=["create", "open"])
def test_wrong_roots_and_options_raise_our_errors(
    function: Callable[..., tl.Lakehouse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for args, kwargs in calls(function):
        if kwargs["uri"] == GOOD["uri"]:
            kwargs["uri"] = f"memory://odd-{next(numbers)}"
        elif isinstance(kwargs["uri"], str | Path) and kwargs["uri"] not in ("", "\0", "\ud800"):
            continue  # a valid path
        said = ""
        try:
            function(*args, **kwargs)
        except tl.TrinityLakeError as error:
            said = str(error)
        assert not FOREIGN.search(said), kwargs


def test_number_beyond_all_versions_raises_version_not_found() -> None:
    lake = new_lake()
    for version in [-(10**30), 10**30, 2**63, 2**64]:
        for call in (lake.at, lake.rollback, lambda version: lake.diff(0, version)):
            with pytest.raises(tl.VersionNotFound, match=r"does not exist|there is no version"):
                call(version)


@pytest.mark.parametrize("rows", [[{"text": "\ud800"}], [{"number": 10**30}]])
def test_row_that_arrow_cannot_hold_raises_invalid_argument(rows: list[dict[str, Any]]) -> None:
    """A value that Arrow cannot hold, such as half of a surrogate pair or a number of 30 digits, raises
    `InvalidArgument`. Programs that catch the library's errors would not catch Python's `UnicodeEncodeError` or
    `OverflowError`."""
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("a")
    table = lake.create_table("a.t", {"text": "text", "number": "bigint"})
    with pytest.raises(tl.InvalidArgument):
        table.append(rows)
    assert lake.table("a.t").scan().to_arrow().num_rows == 0


def test_time_beyond_the_calendar_raises_invalid_argument() -> None:
    """A time beyond the calendar, such as a timeout in a wrong unit, raises `InvalidArgument` and not Python's
    `OverflowError`."""
    lake = tl.create(f"memory://{uuid.uuid4()}")
    txn = lake.begin()
    txn.create_namespace("a")
    with pytest.raises(tl.InvalidArgument, match="timeout_seconds"):
        txn.commit(timeout_seconds=10**400)
    assert lake.version == 0


def test_expiry_before_the_creation_does_nothing() -> None:
    """Expiry before a time that is older than the lakehouse expires nothing, and raises no error."""
    lake = new_lake()
    for before in (datetime(2000, 1, 1, tzinfo=UTC), datetime(1, 1, 1), datetime(1900, 1, 1)):
        assert lake.maintenance.expire(before=before) == []
    assert [entry.version for entry in lake.log()] == [1, 0]


FILTERS = [
    ("x === 1", "x === 1", 2, "a comparison"),
    ("x =", "x =", 3, "a value"),
    ("x = 'a", "x = 'a", 4, "a string in quotes"),
    ("x = 1 andd y = 2", "x = 1 andd y = 2", 6, "and, or"),
    ("(x = 1", "(x = 1", 6, "a condition"),
    ("x = 1 or", "x = 1 or", 8, "a condition"),
    ("x in 1, 2", "x in 1, 2", 5, "parentheses"),
    ("x is nul", "x is nul", 5, "null"),
    ("x like 3", "x like 3", 7, "quotes"),
    ("x", "x", 1, "a comparison"),
    ("", "", 0, "a condition"),
    ("x = 1 and\n  y ~ 3", "  y ~ 3", 4, "a comparison"),
]


def test_a_filter_with_a_typo_shows_the_place() -> None:
    """The error for a filter shows the place of the mistake, not the grammar of PyIceberg's parser."""
    table = new_lake().table("a.t")
    for (filter, line, column, expected), call in itertools.product(FILTERS, (table.scan, table.delete)):
        with pytest.raises(tl.InvalidArgument) as caught:
            call(filter)
        message = str(caught.value).splitlines()
        assert len(message) == 3
        assert message[0].startswith("cannot read the filter: expected ")
        assert expected in message[0]
        assert message[1:] == [f"  {line}", f"  {' ' * column}^"]


def test_only_a_part_of_a_long_filter_is_shown() -> None:
    text = " or ".join(f"x = {number}" for number in range(2000)) + " or x ! 3 or " + "x = 1 or " * 1000 + "x = 2"
    with pytest.raises(tl.InvalidArgument) as caught:
        new_lake().table("a.t").scan(text)
    message = str(caught.value).splitlines()
    assert max(map(len, message)) < 150
    assert message[1][message[2].index("^") :].startswith("! 3 or")


def test_good_filters_are_read() -> None:
    table = new_lake().table("a.t")
    for filter in ("x = 1", "x == 1 and not (x > 2)", "x in (1, 2)", "x is not null", EqualTo("x", 1), "1 = x"):
        assert table.scan(filter).count() == 1


@pytest.mark.parametrize("suffix", [".parquet", "-m0.avro", "snap-"])
def test_the_error_for_a_missing_file_names_table_and_version(tmp_path: Path, suffix: str) -> None:
    """The error for a missing file names the table and the version. `FileNotFoundError: Failed to open local file …`
    named neither."""
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"x": "bigint"}).append({"x": [1, 2]})
    (path,) = [path for path in (tmp_path / "lake").rglob("*") if suffix in path.name]
    os.remove(path)
    lake.create_namespace("b")
    frozen, txn = lake.at(3), lake.begin()
    for version, table in ((3, frozen.table("a.t")), (4, lake.table("a.t")), (4, txn.table("a.t"))):
        reads: list[Callable[[], Any]] = [
            lambda table=table: table.scan().to_arrow(),
            lambda table=table: table.scan().to_arrow_batch_reader().read_all(),
            lambda table=table: table.scan("x = 1").count(),
        ]
        for read in reads:
            with pytest.raises(tl.CorruptFile, match=rf"a\.t in version {version}: .*does not exist") as caught:
                read()
            assert caught.value.path == str(path.relative_to(tmp_path / "lake"))
    with pytest.raises(tl.CorruptFile, match=r"a\.t in version 4"):
        lake.table("a.t").delete("x = 1")


def test_path_objects_are_accepted_for_text(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"x": "bigint"})
    assert tl.open(tmp_path / "lake").uri == lake.uri
    assert tl.create(tmp_path / "lake", exist_ok=True).version == 2
    assert tl.iceberg.load(tmp_path / "lake").list_namespaces() == [("a",)]
    other = tl.create(tmp_path / "other", durability="none")
    other.create_namespace("a")
    lake.table("a.t").append({"x": [1]})
    metadata = Path(lake.table("a.t").iceberg.metadata_location.removeprefix("file://"))
    assert other.create_table("a.t", metadata_location=metadata).scan().count() == 1
    with pytest.raises(tl.NotALakehouse):
        tl.open(tmp_path / "nothing")
