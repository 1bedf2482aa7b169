"""Secrets are in nothing that Spark writes or shows: settings become properties of jobs, which Spark logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import trinitylake as tl
from s3_server import S3Server, serve
from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.spark import connect
from trinitylake.spark.options import Options
from trinitylake.spark.secret_settings import divided, warn_of_secrets

#: The application takes half a minute on an idle machine.
pytestmark = pytest.mark.timeout(900)

JOB = Path(__file__).parent / "secrets_job.py"
#: Properties of a catalog for each kind of store. No value contains a word that Spark recognises as a secret.
CATALOG_CONFIG = {
    "s3.access-key-id": "CANARY-one",
    "s3.secret-access-key": "CANARY-two",
    "s3.session-token": "CANARY-three",
    "gcs.oauth2.token": "CANARY-four",
    "adls.auth.shared-key.account.name": "account",
    "adls.auth.shared-key.account.key": "CANARY-five",
    "adls.sas-token.account": "CANARY-six",
}
#: Storage options of the data source for a store without authentication.
S3 = {"secret_access_key": "CANARY-eight", "session_token": "CANARY-nine"}
_NOWHERE = {"allow_http": "true", "max_retries": "0", "retry_timeout": "1"}
#: Storage options for stores that cannot be reached. The secrets are in the environment.
AWAY = {
    "azure key": (
        "az://container/lake",
        {"account_name": "account", "account_key": "env:AZURE_KEY", "endpoint": "http://127.0.0.1:9", **_NOWHERE},
    ),
    "azure sas": (
        "az://container/lake",
        {"account_name": "account", "sas_key": "env:AZURE_SAS", "endpoint": "http://127.0.0.1:9", **_NOWHERE},
    ),
    "gcs": ("gs://bucket/lake", {"bearer_token": "CANARY-ten", "base_url": "http://127.0.0.1:9", **_NOWHERE}),
}
VARIABLES = {"AZURE_KEY": "Q0FOQVJZLWF6dXJl", "AZURE_SAS": "sig=CANARY-eleven"}
CANARIES = {
    **{name: value for name, value in CATALOG_CONFIG.items() if value.startswith("CANARY")},
    **{f"storage.{name}": value for name, value in S3.items()},
    "storage.bearer_token": "CANARY-ten",
    "storage.account_key": VARIABLES["AZURE_KEY"],
    "storage.sas_key": "CANARY-eleven",
}


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def written(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All output of the application by name, including its log."""
    root = f"s3://{s3.new_bucket()}/lake"
    rows = pa.table({"id": [1, 2, 3]})
    with tl.create(root, storage_options=s3.storage_options).transaction() as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.flights", rows).append(rows)
        txn.create_table("nyc.copy", rows)
    folder = tmp_path_factory.mktemp("application")
    environment = {
        **os.environ,
        **VARIABLES,
        "TRINITYLAKE_TEST_CATALOG_CONFIG": json.dumps(CATALOG_CONFIG),
        "TRINITYLAKE_TEST_S3": json.dumps({"root": root, "options": {**s3.storage_options, **S3}}),
        "TRINITYLAKE_TEST_AWAY": json.dumps(AWAY),
    }
    ran = subprocess.run([sys.executable, str(JOB), str(folder)], env=environment, capture_output=True, check=False)
    if ran.returncode:
        pytest.fail(ran.stderr.decode()[-2000:], pytrace=False)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {**files, "standard output": ran.stdout, "standard error": ran.stderr}


def test_what_is_looked_through_is_what_spark_writes(written: dict[str, bytes]) -> None:
    """The places that these tests search do contain what Spark writes, such as an uncompressed event log. Otherwise a
    search that finds nothing would prove nothing."""
    events = b"".join(data for name, data in written.items() if name.startswith("events/"))
    assert all(event in events for event in (b"JobStart", b"StageSubmitted", b"SQLExecutionStart"))
    setting = b'"spark.sql.catalog.lake.token":"env:TRINITYLAKE_TOKEN_'
    assert events.count(setting) > 10
    for name in ("api-environment", "page-SQL", "plan-formatted", "source-plan-formatted", "settings", "progress"):
        assert len(written[f"seen/{name}"]) > 100, name
    if os.environ.get("TRINITYLAKE_DEEP"):
        assert b"spark.sql.extensions" in written["seen/history-environment"]
        assert any(name.startswith("seen/history-sql") and b"nyc.flights" in data for name, data in written.items())
    assert b"spark.sql.catalog.lake.token" in written["seen/settings-by-name"]
    assert any(name.startswith("checkpoint/") for name in written)
    assert any(name.startswith("source-checkpoint/") for name in written)
    assert any(b"SparkSubmit" in data for name, data in written.items() if name.startswith("seen/process-"))
    assert len(written["standard error"]) > 1000


def test_the_token_of_the_server_is_nowhere(written: dict[str, bytes]) -> None:
    """The token of the driver's server is in no setting, and so not in the event log, with which a reader of the logs
    could use the server."""
    token = written["token"]
    assert len(token) > 30
    assert [name for name, data in written.items() if name != "token" and token in data] == []


@pytest.mark.parametrize("kind", CANARIES)
def test_a_secret_of_the_store_is_nowhere(written: dict[str, bytes], kind: str) -> None:
    """Keys of the store are not in settings, from which they would get into the event log, the pages and SET; Spark
    does not recognise an Azure key as a secret."""
    canary = CANARIES[kind].encode()
    assert [name for name, data in written.items() if canary in data] == []


@pytest.mark.parametrize(
    ("root", "options"),
    [
        ("s3://b/l", {"access_key_id": "a", "secret_access_key": "b", "session_token": "c", "region": "r"}),
        ("gs://b/l", {"bearer_token": "t", "base_url": "http://x"}),
        ("abfss://c@a.dfs.core.windows.net/l", {"account_name": "a", "account_key": "a2V5"}),
        ("abfss://c@a.dfs.core.windows.net/l", {"account_name": "a", "bearer_token": "t"}),
    ],
)
def test_no_storage_option_becomes_a_setting(root: str, options: dict[str, str]) -> None:
    properties = _core.iceberg_properties(root, options)
    assert len(properties) >= 2
    assert divided(properties) == (properties, {})


@pytest.mark.parametrize("name", ["credential", "token", "header.authorization", "hadoop.fs.s3a.secret.key"])
def test_a_secret_that_only_a_setting_can_tell_is_refused(shop: tl.Lakehouse, spark: SparkSession, name: str) -> None:
    """A secret that only a setting can transmit is refused. Some properties cannot be sent by the server, because they
    are needed to reach it, or because Hadoop reads them."""
    with pytest.raises(InvalidArgument, match=name):
        connect(shop.uri, "refused", spark=spark, durability="none", catalog_config={name: "CANARY"})
    assert "CANARY" not in str(spark.conf.getAll)
    assert divided({name: "env:NAME"}) == ({}, {name: "env:NAME"})


def test_a_secret_on_the_command_line_of_the_jvm_is_warned_of() -> None:
    """A secret in a setting of the JVM gives a warning. PySpark starts the JVM with all settings as arguments, which
    every user of the machine can read."""
    with pytest.warns(UserWarning, match=r"spark\.hadoop\.fs\.s3a\.secret\.key"):
        warn_of_secrets({"spark.hadoop.fs.s3a.secret.key": "x", "spark.master": "local"})


@pytest.mark.parametrize("name", ["account_key", "azure_storage_access_key", "sas_key", "service_account_key"])
def test_a_secret_that_spark_would_not_hide_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret is refused in an option that Spark does not redact by its name, such as the key of an Azure account.
    Plans show the options of a source, and a streaming write logs its plan."""
    with pytest.raises(InvalidArgument, match=f"storage.{name}") as refused:
        Options.parse({"root": "az://c/l", f"storage.{name}": "CANARY"})
    assert "CANARY" not in str(refused.value)
    monkeypatch.setenv("AZURE_KEY", "CANARY")
    assert Options.parse({"root": "az://c/l", f"storage.{name}": "env:AZURE_KEY"}).storage == {name: "CANARY"}


def test_an_option_of_the_data_source_says_where_its_secret_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option of the data source can name the file or variable with a secret, because notebooks and jobs are files
    that others read."""
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    monkeypatch.setenv("TRINITYLAKE_TEST_SECRET", "from a variable")
    given = {"storage.secret_access_key": f"@{file}", "storage.session_token": "env:TRINITYLAKE_TEST_SECRET"}
    parsed = Options.parse({"root": "s3://b/l", **given})
    assert parsed.storage == {"secret_access_key": "from a file", "session_token": "from a variable"}
    with pytest.raises(InvalidArgument, match="session_token"):
        Options.parse({"root": "s3://b/l", "storage.session_token": "env:TRINITYLAKE_NO_SUCH_VARIABLE"})
