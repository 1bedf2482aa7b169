"""`trinitylake serve`: a process that serves until it is told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.cli.app import app

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def test_the_command_serves_until_it_is_told_to_stop(lake: tl.Lakehouse) -> None:
    command = [sys.executable, "-m", "trinitylake", "serve", "--root", lake.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while line := process.stdout.readline():
                text += line
                if line.startswith("}"):
                    break
            served = json.loads(text)
            catalog = RestCatalog("test", uri=served["url"])
            catalog.create_namespace("shop")
            catalog.create_table("shop.orders", ROWS.schema).append(ROWS)
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM), errors
    assert "Traceback" not in errors
    assert lake.table("shop.orders").scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_the_command_refuses_to_be_open_to_other_machines(lake: tl.Lakehouse, host: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-that-is-long-enough\n")
    tokens.chmod(0o600)
    for options in ([], ["--behind-proxy"], ["--token-file", str(tokens)]):
        result = CliRunner().invoke(app, ["serve", "--root", lake.uri, "--host", host, *options])
        assert result.exit_code == 2, result.output
        assert "other machines" in result.output
