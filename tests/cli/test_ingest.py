"""`trinitylake ingest`: each row of pipes and growing files is written once, whatever ends the command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import trinitylake as tl
from trinitylake.cli.app import app
from trinitylake.tables.ingestion.text_rows import CsvRows, Records
from waiting import PATIENCE_SECONDS, wait_until

COLUMNS = {
    "id": "bigint",
    "name": "varchar",
    "at": "timestamptz",
    "day": "date",
    "price": "decimal(20, 10)",
    "ok": "boolean",
    "ratio": "double precision",
    "tags": "array(bigint)",
    "part": "row(a bigint, b varchar)",
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("raw")
    lake.create_table("raw.events", COLUMNS)
    return lake


def run(lake: tl.Lakehouse, *arguments: str, input: str | bytes | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["ingest", "raw.events", *arguments, "--root", lake.uri], input=input)
    assert result.exit_code == code, result.output
    return result


def rows(lake: tl.Lakehouse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.table("raw.events").scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["id"])


def ids(lake: tl.Lakehouse) -> list[int]:
    return [row["id"] for row in rows(lake)]


def test_values_of_json_and_csv_are_those_of_load(lake: tl.Lakehouse, tmp_path: Path) -> None:
    """Values of JSON and CSV are converted as in `load`, which reads the same files with DuckDB."""
    at = "2026-01-02T03:04:05.678901"
    lines = [
        {"id": 1, "name": 'é, "x"\ny', "at": f"{at}Z", "day": "2026-01-02", "price": 12.3456789012},
        {"id": 9007199254740993, "ok": True, "ratio": 0.1, "price": 9999999999.0123456789, "at": f"{at}+02:00"},
        {"id": 3, "name": 5, "ratio": 1e300, "ok": False, "tags": [1, 9007199254740993], "part": {"a": 7, "b": None}},
        {"id": 4, "name": None, "tags": [], "part": None},
    ]
    text = "\n".join(json.dumps(line) for line in lines).replace("9999999999.012346", "9999999999.0123456789") + "\n\n"
    (tmp_path / "rows.jsonl").write_text(text)
    cells = f'id,name,at,price,ok,ratio\n1,"a, ""b""\nc",{at}Z,1.5,true,2.5\n2,,2026-01-02 00:00:00Z,,false,\n'
    (tmp_path / "rows.csv").write_text(cells)
    lake.create_table("raw.loaded", COLUMNS)
    for name in ("rows.jsonl", "rows.csv"):
        loaded = CliRunner().invoke(app, ["load", str(tmp_path / name), "raw.loaded", "--root", lake.uri])
        assert loaded.exit_code == 0, loaded.output
    run(lake, "-", input=text)
    run(lake, str(tmp_path / "rows.csv"))
    expected = lake.table("raw.loaded").scan().to_arrow().to_pylist()
    assert sorted(map(repr, rows(lake))) == sorted(map(repr, expected))


def test_bad_row_stops_after_the_rows_before_or_goes_to_the_dead_letter_table(
    lake: tl.Lakehouse, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"id": 1}\n')
    run(lake, str(file), "--producer", "p")
    with file.open("ab") as more:
        more.write(b'{"id": 2}\n{"id": "two"}\n{"id": 3, "id": 4}\nno json\n[1]\n\xff\n{"nme": 1}\n{"id": 5}\n')
    refused = run(lake, str(file), "--producer", "p", code=2)
    # A row that does not fit does not affect the rows before it. They failed, too, if they had arrived in the same
    # second.
    assert "events.jsonl, lines after byte 20: line 1:" in " ".join(refused.output.split())
    assert "--dead-letter" in refused.output
    assert ids(lake) == [1, 2]
    done = json.loads(run(lake, str(file), "--producer", "p", "--dead-letter", "raw.dead", "--json").stdout)
    assert (done["rows"], done["rejected"], done["bytes"]) == (1, 6, file.stat().st_size)
    assert ids(lake) == [1, 2, 5]
    letters = lake.table("raw.dead").scan().to_arrow().to_pylist()
    assert sorted(one["row"] for one in letters) == sorted(
        ['{"id": "two"}', '{"id": 3, "id": 4}', "no json", "[1]", "\ufffd", '{"nme": 1}']
    )
    assert {one["producer"] for one in letters} == {"p"}
    again = json.loads(run(lake, str(file), "--producer", "p", "--json").stdout)
    assert (again["rows"], again["rejected"]) == (0, 0)


@pytest.mark.sample(4)
@pytest.mark.parametrize("bad", [0, 1, 699, 999])
@pytest.mark.parametrize("format", ["json", "csv"])
def test_all_rows_before_the_first_bad_one_are_written(
    lake: tl.Lakehouse, tmp_path: Path, format: str, bad: int
) -> None:
    file = tmp_path / f"events.{format}"
    texts = ["bad" if number in (bad, bad + 50) else str(number) for number in range(1000)]
    lines = ["id", *texts] if format == "csv" else [f'{{"id": "{text}"}}' for text in texts]
    file.write_text("\n".join(lines))
    refused = run(lake, str(file), code=2)
    assert f"line {bad + 1 + (format == 'csv'):,}:" in " ".join(refused.output.split())
    assert ids(lake) == list(range(bad))


@pytest.mark.parametrize("is_pipe", [False, True])
def test_second_run_continues_after_the_stored_bytes(lake: tl.Lakehouse, tmp_path: Path, is_pipe: bool) -> None:
    file = tmp_path / "events.csv"
    text = "id,name\r\n"
    for end in (3, 5, 5, 9):
        text = "id,name\r\n" + "".join(f'{id},"a\nb"\r\n' for id in range(end))
        file.write_text(text, newline="")
        arguments = ["-", "-f", "csv"] if is_pipe else [str(file)]
        run(lake, *arguments, "--producer", "p", input=text if is_pipe else None)
        assert ids(lake) == list(range(end))
    other = "id,name\r\n" + "x" * 500
    file.write_text(other, newline="")
    refused = run(lake, *arguments, "--producer", "p", input=other if is_pipe else None, code=2)
    assert "another --producer" in refused.output


@pytest.mark.parametrize("is_pipe", [False, True])
def test_second_run_refuses_an_input_with_other_bytes(lake: tl.Lakehouse, tmp_path: Path, is_pipe: bool) -> None:
    """A run of a producer refuses an input that does not begin with the ingested bytes, such as a rotated log.
    Otherwise it would skip rows."""
    files = [tmp_path / "events.1", tmp_path / "events"]
    texts = ["".join(f'{{"id": {id}}}\n' for id in range(begin, begin + 300)) for begin in (1000, 2000)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    half = texts[0][: len(texts[0]) // 2]
    run(lake, "-", "--producer", "p", input=half)
    former, latest = ("-", "-") if is_pipe else map(str, files)
    refused = run(lake, latest, "--producer", "p", input=texts[1] if is_pipe else None, code=2)
    assert "does not begin with them" in " ".join(refused.output.split())
    run(lake, former, "--producer", "p", input=texts[0] if is_pipe else None)
    run(lake, latest, "--producer", "q", input=texts[1] if is_pipe else None)
    assert ids(lake) == [*range(1000, 1300), *range(2000, 2300)]


def test_wrong_arguments_are_usage_errors(lake: tl.Lakehouse, tmp_path: Path) -> None:
    assert "--follow needs a file" in run(lake, "--follow", code=2).output
    assert "cannot be read" in run(lake, str(tmp_path / "none"), code=2).output
    assert "has no header" in run(lake, "-f", "csv", input="", code=2).output
    assert "max-delay" in run(lake, "--max-delay", "soon", code=2).output
    assert "has 1 fields" in run(lake, "-f", "csv", input="id,name\n1\n", code=2).output
    missing = CliRunner().invoke(app, ["ingest", "raw.none", "--root", lake.uri], input="")
    assert missing.exit_code == 4


def test_fields_of_csv_are_those_of_duckdb(tmp_path: Path) -> None:
    """Empty fields of CSV are NULL, and quoted empty fields are not, as in DuckDB. Python's csv module does not
    distinguish them."""
    import duckdb

    choose = random.Random(7)

    def field() -> str:
        text = "".join(choose.choices('ab,"\n ', k=choose.randint(0, 4)))
        has_quotes = bool(set(text) & set(',"\n')) or choose.random() < 0.5
        return '"' + text.replace('"', '""') + '"' if has_quotes else text

    texts = [",".join(field() for _ in range(3)) for _ in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(texts) + "\n", newline="")
    found = duckdb.execute(
        f"""FROM read_csv('{tmp_path / "rows.csv"}', header=false, delim=',', quote='"', escape='"',
        nullstr=['', 'ab'], allow_quoted_nulls=false, auto_detect=false, columns={{a: 'VARCHAR', b: 'VARCHAR',
        c: 'VARCHAR'}})"""
    ).fetchall()
    rows = CsvRows(["a", "b", "c"], ",", ["ab"])(text.encode() for text in texts).rows
    assert [tuple(row.values()) for row in rows if isinstance(row, dict)] == found
    assert sum(row.count(None) for row in found) > 50
    for bad in (b'a"b,c,d', b'"a"b,c,d', b"a,b", b"\xff,b,c", b'"a,b,c'):
        assert isinstance(CsvRows(["a", "b", "c"], ",")([bad]).rows[0], tl.InvalidArgument)


def test_records_do_not_depend_on_how_bytes_are_divided() -> None:
    choose = random.Random(3)
    text = b'a,"x\n""y"",\n"\nb\r\n\n"\n",c\nrest'
    for _ in range(200):
        records, found, at = Records(has_quotes=True), [], 0
        while at < len(text):
            size = choose.randint(1, 6)
            found += records(text[at : at + size])
            at += size
        assert [*found, records.rest] == [b'a,"x\n""y"",\n"\n', b"b\r\n", b"\n", b'"\n",c\n', b"rest"]


def start(lake: tl.Lakehouse, *arguments: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trinitylake", "ingest", "raw.events", *arguments, "--root", lake.uri]
    return subprocess.Popen([*command, "--max-delay", "50ms"], stdin=stdin, stdout=subprocess.PIPE, env=os.environ)


def wait_for(lake: tl.Lakehouse, count: int) -> None:
    wait_until(lambda: lake.table("raw.events").count() >= count)


def test_pipe_that_pauses_is_committed_meanwhile(lake: tl.Lakehouse) -> None:
    process = start(lake, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b'{"id": 0}\n{"id": 1}\n{"i')
    process.stdin.flush()
    wait_for(lake, 2)
    process.stdin.write(b'd": 2}')
    process.stdin.close()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert ids(lake) == [0, 1, 2]


def test_killed_follower_writes_each_row_once(lake: tl.Lakehouse, tmp_path: Path) -> None:
    file, choose, count = tmp_path / "events.jsonl", random.Random(5), 0
    file.touch()
    with file.open("a") as more:
        for end in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            process = start(lake, str(file), "--follow", "--producer", "p")
            for _ in range(4):
                for _ in range(choose.randint(1, 40)):
                    more.write(json.dumps({"id": count, "name": "x" * choose.randint(0, 9)}) + "\n")
                    count += 1
                more.flush()
                time.sleep(choose.random() / 5)
            if end == signal.SIGINT:
                wait_for(lake, count)
            else:
                wait_for(lake, choose.randint(count // 2, count))
            process.send_signal(end)
            assert process.wait(PATIENCE_SECONDS) == (0 if end == signal.SIGINT else -end)
    assert ids(lake) == list(range(count))


@pytest.mark.parametrize("change", ["rotated", "truncated", "written again"])
def test_follower_of_a_file_that_is_rotated_or_truncated_ends_after_the_last_rows(
    lake: tl.Lakehouse, tmp_path: Path, change: str
) -> None:
    """If a followed file is rotated or truncated, the command writes the last rows and ends with an error, instead of
    waiting for ever or skipping rows of the new file."""
    file = tmp_path / "events.jsonl"
    file.write_text('{"id": 0}\n')
    process = start(lake, str(file), "--follow", "--producer", "p")
    wait_for(lake, 1)
    process.send_signal(signal.SIGSTOP)
    with file.open("a") as stream:
        stream.write('{"id": 1}\n')
        if change == "rotated":
            file.rename(tmp_path / "events.jsonl.1")
            stream.write('{"id": 2}\n')
    if change == "rotated":
        file.write_text('{"id": 3}\n')
        process.send_signal(signal.SIGCONT)
    else:
        process.send_signal(signal.SIGCONT)
        wait_for(lake, 2)
        process.send_signal(signal.SIGSTOP)
        file.write_text("" if change == "truncated" else "".join(f'{{"id": {id}}}\n' for id in range(4, 9)))
        process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE_SECONDS) == 2
    assert ids(lake) == ([0, 1, 2] if change == "rotated" else [0, 1])
