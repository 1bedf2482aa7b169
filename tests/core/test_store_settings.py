"""Settings of the store for other clients, from the storage options in every spelling.

The server and Spark each had a table of spellings in addition to that of the core. They diverged: the server did not
know `s3.path-style-access`, and neither accepted `1` or `yes` for true, so clients used `store/bucket/…` while the
lakehouse itself was read from `bucket.store/…`.
"""

from __future__ import annotations

import pytest

from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.rest.files.s3_store import S3Store

KEYS = {"key": "id", "secret": "s"}
ENDPOINT = {"endpoint": "https://store.example"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "DEFAULT_REGION", "ENDPOINT_URL", "ENDPOINT_URL_S3"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


@pytest.mark.parametrize(
    ("option", "value", "path_style"),
    [
        ("s3.path-style-access", "false", "false"),
        ("s3.path-style-access", "true", "true"),
        ("s3.force-virtual-addressing", "yes", "false"),
        ("aws_virtual_hosted_style_request", "1", "false"),
        ("virtual_hosted_style_request", "off", "true"),
    ],
)
def test_the_server_and_spark_are_told_the_same_about_path_style(option: str, value: str, path_style: str) -> None:
    options = {**KEYS, **ENDPOINT, option: value}
    assert S3Store("s3://bucket/lake", options).client_settings["s3.path-style-access"] == path_style
    assert _core.iceberg_properties("s3://bucket/lake", options)["s3.path-style-access"] == path_style


def test_every_spelling_of_a_setting_reaches_the_server() -> None:
    store = S3Store("s3://bucket/lake", {**KEYS, "default_region": "eu-west-1", "endpoint_url": "http://localhost:1/"})
    assert (store.region, store.endpoint) == ("eu-west-1", "http://localhost:1")
    assert store.credentials().access_key == "id"


def test_environment_applies_where_no_option_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9")
    settings = _core.S3Settings(KEYS)
    assert (settings.region, settings.endpoint, settings.is_bucket_in_host) == (
        "eu-north-1",
        "http://localhost:9",
        False,
    )
    # Setting of Iceberg's own clients, which look it up themselves, so the server need not repeat it.
    assert _core.iceberg_properties("s3://bucket/lake", KEYS) == {"s3.access-key-id": "id", "s3.secret-access-key": "s"}


def test_an_option_that_no_store_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="did you mean `region`"):
        _core.S3Settings({"regoin": "eu-west-1"})
    assert _core.iceberg_properties("/tmp/lake", {"region": "eu-west-1"}) == {}
