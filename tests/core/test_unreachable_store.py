"""A store that cannot be reached is reported at once, with its endpoint and bucket."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

import trinitylake as tl

KEYS = {"access_key_id": "a-key", "secret_access_key": "a-secret-key", "region": "us-east-1"}
#: After an error of the store, requests are repeated for up to an hour.
RETRIES = {"retry_timeout": "3600", "max_retries": "1000000"}


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"], ids=["refused", "unknown"])
@pytest.mark.parametrize("call", [tl.open, tl.create], ids=["open", "create"])
def test_a_wrong_endpoint_is_reported_soon_with_endpoint_and_bucket(call: Callable[..., object], host: str) -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # without `listen`, connections are refused
        uri = f"http://{host}:{refusing.getsockname()[1]}"
        with pytest.raises(tl.StorageError) as raised:
            call("s3://the-bucket/lake", storage_options={**KEYS, **RETRIES, "endpoint": uri})
    assert uri in str(raised.value)
    assert "the-bucket" in str(raised.value)
    assert not {"_expired", "_latest_hint", "a-secret-key"} & set(str(raised.value).replace("/", " ").split())
    assert raised.value.retryable is False
