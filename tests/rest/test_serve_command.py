"""`trinitylake serve`: a process that serves until a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from typer.testing import CliRunner

import trinitylake as tl
from rest.shop import ROWS
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, S3Server
from trinitylake.cli.app import app
from waiting import PATIENCE_SECONDS


def announced(process: subprocess.Popen[str]) -> str:
    """The JSON document that the command prints when the server is ready."""
    assert process.stdout is not None
    text = ""
    while line := process.stdout.readline():
        text += line
        if line.startswith("}"):
            break
    return text


def test_the_command_serves_until_a_signal(lake: tl.Lakehouse) -> None:
    command = [sys.executable, "-m", "trinitylake", "serve", "--root", lake.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            text = announced(process)
            catalog = RestCatalog("test", uri=json.loads(text)["url"])
            catalog.create_namespace("shop")
            catalog.create_table("shop.orders", ROWS.schema).append(ROWS)
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, -signal.SIGTERM), errors
    assert "Traceback" not in errors
    assert lake.table("shop.orders").scan().to_arrow().num_rows == 3


NEVER_ENDS = """
import sys, time
from trinitylake.cli.app import app
from trinitylake.rest import limits
from trinitylake.rest.transactions.memory import TransactionsInMemory
limits.GRACE_SECONDS, limits.SAVING_SECONDS = 1, 1.0
TransactionsInMemory.hand_over_all = lambda self: time.sleep(600)
app(sys.argv[1:])
"""


def test_the_command_ends_although_a_request_hangs(lake: tl.Lakehouse) -> None:
    """After SIGTERM the server ends within its time limit, even if threads are busy or the storage hangs while a
    transaction is saved."""
    command = [sys.executable, "-c", NEVER_ENDS, "serve", "--root", lake.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            catalog = RestCatalog("test", uri=json.loads(announced(process))["url"])
            assert catalog.list_namespaces() == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 1
        finally:
            process.kill()
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "the process ends although requests still run" in errors


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_the_command_refuses_other_addresses_without_tokens_and_tls(
    lake: tl.Lakehouse, host: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-that-is-long-enough\n")
    tokens.chmod(0o600)
    for options in ([], ["--behind-proxy"], ["--token-file", str(tokens)]):
        result = CliRunner().invoke(app, ["serve", "--root", lake.uri, "--host", host, *options])
        assert result.exit_code == 2, result.output
        assert "other machines" in result.output


def test_the_command_gives_access_to_files_on_s3_only(lake: tl.Lakehouse) -> None:
    for option in (["--sign-requests"], ["--vend-role", "arn:aws:iam::123456789012:role/lake"]):
        result = CliRunner().invoke(app, ["serve", "--root", lake.uri, "--port", "0", *option])
        assert result.exit_code == 2, result.output
        assert "S3 only" in result.output


def test_the_command_signs_with_the_options_of_the_storage(lake_on_s3: tl.Lakehouse, s3: S3Server) -> None:
    command = [sys.executable, "-m", "trinitylake", "serve", "--root", lake_on_s3.uri, "--port", "0", "--json"]
    command += [text for name, value in s3.storage_options.items() for text in ("--option", f"{name}={value}")]
    command += ["--sign-requests", "--vend-role", "arn:aws:iam::123456789012:role/lake", "--vend-seconds", "900"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            text = announced(process)
            wish = {"header.X-Iceberg-Access-Delegation": "remote-signing"}
            catalog = RestCatalog("test", uri=json.loads(text)["url"], **wish)
            assert catalog.load_table("shop.orders").config["s3.signer.endpoint"].endswith("/tables/orders/sign")
            [given] = catalog._load_credentials("shop.orders").storage_credentials
            assert given.config["s3.access-key-id"] != ACCESS_KEY
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert SECRET_KEY not in text + errors
    assert SESSION_TOKEN not in text + errors
