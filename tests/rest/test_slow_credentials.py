"""A credential service that accepts connections and never answers delays only the requests that need credentials.

The client got an error at the deadline, but the thread continued to read. Four such threads blocked all credentials
until the server restarted. With temporary credentials of the server itself, each sign request waited without a
deadline: sixty-four of them blocked the server.
"""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client, in_the_end, running
from rest.conftest import ROOT, WALT
from rest.test_signing import Signer
from s3_server import S3Server
from trinitylake.rest import S3Access, ServerOptions, outbound
from trinitylake.rest.files import s3_store
from trinitylake.rest.outbound import MAX_WAITING_FOR_ONE, Outbound
from waiting import PATIENCE_SECONDS

ROLE = "arn:aws:iam::123456789012:role/lake"
ORDERS = "/v1/latest/namespaces/shop/tables/orders"


def given(operation: str) -> bytes:
    """The response of a working credential service."""
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f'<{operation}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{operation}Result><Credentials>'
        "<AccessKeyId>GIVEN</AccessKeyId><SecretAccessKey>secret-that-was-given</SecretAccessKey>"
        f"<SessionToken>token</SessionToken><Expiration>{end}</Expiration></Credentials>"
        f"</{operation}Result></{operation}Response>"
    ).encode()


class Service(http.server.BaseHTTPRequestHandler):
    """Answers as `how` says."""

    how = "well"
    asked = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        with suppress(OSError):  # the client has disconnected
            operation = "AssumeRoleWithWebIdentity" if b"WebIdentity" in body else "AssumeRole"
            getattr(self, self.how)(given(operation))

    def well(self, answer: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def silence(self, answer: bytes) -> None:
        time.sleep(60)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[type[Service]]:
    handler = type("Handler", (Service,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    handler.address = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_store, "_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(outbound, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(Outbound.__init__, "__defaults__", (0.2,))


def test_temporary_credentials_are_given_after_the_service_recovers(
    lake_on_s3: tl.Lakehouse, s3: S3Server, tokens: Path, service: Any, short: None
) -> None:
    access = S3Access(role_arn=ROLE, sts_endpoint=service.address, storage_options=s3.storage_options)
    service.how = "silence"
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        client = Client(server)
        codes = [client("GET", f"{ORDERS}/credentials", token=WALT).code for _ in range(MAX_WAITING_FOR_ONE + 2)]
        assert set(codes) <= {503, 504}
        wished = {"X-Iceberg-Access-Delegation": "vended-credentials"}
        assert client("GET", ORDERS, token=WALT, headers=wished).code == 200, "the client may have its own credentials"
        assert client("GET", "/v1/config", token=WALT).code == 200
        service.how = "well"
        answer = in_the_end(lambda: client("GET", f"{ORDERS}/credentials", token=ROOT))
        assert answer.code == 200
        assert answer.body["storage-credentials"][0]["config"]["s3.access-key-id"] == "GIVEN"


def test_waiting_for_the_servers_own_credentials_delays_no_other_request(
    lake_on_s3: tl.Lakehouse,
    s3: S3Server,
    tokens: Path,
    tmp_path: Path,
    service: Any,
    short: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identity = tmp_path / "identity"
    identity.write_text("a-token-of-the-cluster")
    for name, value in {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(identity),
        "AWS_ROLE_ARN": ROLE,
        "AWS_ENDPOINT_URL_STS": service.address,
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    service.how = "silence"
    access = S3Access(signs_requests=True, storage_options={"endpoint": s3.endpoint, "region": "us-east-1"})
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        signer = Signer(server, lake_on_s3, s3)
        codes: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: codes.append(signer("GET", f"{signer.location}/data/x.parquet").code), daemon=True
            )
            for _ in range(70)
        ]
        for thread in threads:
            thread.start()
        assert signer.client("GET", ORDERS, token=ROOT).code == 200
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert len(codes) == 70, "a request did not end"
        assert set(codes) <= {429, 503, 504}
        service.how = "well"
        answer = in_the_end(lambda: signer("GET", f"{signer.location}/data/x.parquet"))
        assert answer.code == 200
        assert "GIVEN" in answer.body["headers"]["Authorization"][0]
