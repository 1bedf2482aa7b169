"""A store that cannot be reached: reported within seconds, with its endpoint and bucket."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

import trinitylake as tl

KEYS = {"access_key_id": "a-key", "secret_access_key": "a-secret-key", "region": "us-east-1"}


def refusing() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("endpoint", [refusing, lambda: "http://no-such-host.invalid:9000"], ids=["refused", "unknown"])
@pytest.mark.parametrize("call", [tl.open, tl.create], ids=["open", "create"])
def test_a_wrong_endpoint_is_reported_soon_with_endpoint_and_bucket(
    call: Callable[..., object], endpoint: Callable[[], str]
) -> None:
    """A typing error in the endpoint took 15 seconds, and the error named a file `_expired/` that no user knows."""
    uri, began = endpoint(), time.monotonic()
    with pytest.raises(tl.StorageError) as raised:
        call("s3://the-bucket/lake", storage_options={**KEYS, "endpoint": uri})
    assert time.monotonic() - began < 8
    assert uri in str(raised.value)
    assert "the-bucket" in str(raised.value)
    assert not {"_expired", "_latest_hint", "a-secret-key"} & set(str(raised.value).replace("/", " ").split())
    assert raised.value.retryable is False
