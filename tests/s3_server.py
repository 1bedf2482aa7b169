"""An S3 server in this process, with the conditional PUT of S3: of several creators of an object, one succeeds.

Moto checks `If-None-Match: *` and then stores the object. Another request can come between these two steps, while S3
does both atomically. TrinityLake needs this guarantee for its commits: it would lose commits on plain moto, and refuses
to create a lakehouse there.

So `serve` puts a lock around the PUT of moto. Two further variants do not give the guarantee; tests check that
TrinityLake detects them.
"""

from __future__ import annotations

import functools
import logging
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import trustme
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import S3Backend
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from werkzeug.serving import make_server

#: Values that may appear only in requests.
ACCESS_KEY = "AKIACANARYACCESSKEY"
SECRET_KEY = "canarysecret/0123456789abcdefghijklmnopqr"
SESSION_TOKEN = "canarysessiontoken-0123456789"

Put = Callable[..., Any]
#: Moto's own methods, also while a running server has replaced them.
PLAIN_PUT: Put = S3Response.put_object
PLAIN_STORE = S3Backend.put_object

# Moto compares the host of each request with the patterns of all services of AWS, a fifth of the time of a request.
DomainDispatcherApplication.get_backend_for_host = functools.cache(DomainDispatcherApplication.get_backend_for_host)


@dataclass
class S3Server:
    """A running server, with the settings that its clients need."""

    endpoint: str
    #: File with the certificate authority of an https endpoint.
    authority: Path | None = None

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "allow_http": "true",
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "session_token": SESSION_TOKEN,
        }

    @property
    def pyiceberg_properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.session-token": SESSION_TOKEN,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The storage options as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": SESSION_TOKEN,
        }

    def client(self) -> Any:
        """A boto3 client."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            verify=self.authority and str(self.authority),
        )

    def new_bucket(self) -> str:
        bucket = f"bucket-{uuid.uuid4()}"
        self.client().create_bucket(Bucket=bucket)
        return bucket

    @contextmanager
    def slow(self, name: str, seconds: float, arrived: Callable[[], None]) -> Iterator[None]:
        """Delay the PUT of each object whose name ends with `name`; `arrived` is called when such a request arrives."""
        put = S3Response.put_object

        def slowly(response: S3Response) -> Any:
            if response.path.endswith(name):
                arrived()
                time.sleep(seconds)
            return put(response)

        with mock.patch.object(S3Response, "put_object", slowly):
            yield

    def files(self, bucket: str) -> dict[str, bytes]:
        """All objects of a bucket, by key."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def atomic(put: Put) -> Put:
    """Like S3: no request comes between the check and the write."""
    lock = threading.Lock()

    def locked(response: S3Response) -> Any:
        with lock:
            return put(response)

    return locked


def unconditional(put: Put) -> Put:
    """A store that ignores the header `If-None-Match`."""

    def ignoring(response: S3Response) -> Any:
        response.headers = {name: value for name, value in response.headers.items() if name.lower() != "if-none-match"}
        return put(response)

    return ignoring


def two_steps(put: Put) -> Put:
    """Plain moto, with a pause between check and write, in which another request can be processed."""
    return put


@contextmanager
def serve(how: Callable[[Put], Put] = atomic) -> Iterator[S3Server]:
    """Run a server on a free port of loopback. Its objects are lost when it stops."""

    def slowly(*arguments: Any, **options: Any) -> Any:
        if how is two_steps:
            time.sleep(0.05)
        return PLAIN_STORE(*arguments, **options)

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    with (
        mock.patch.object(S3Response, "put_object", how(PLAIN_PUT)),
        mock.patch.object(S3Backend, "put_object", slowly),
    ):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        try:
            yield S3Server(f"http://{host}:{port}")
        finally:
            server.stop()


@contextmanager
def serve_tls(folder: Path) -> Iterator[S3Server]:
    """Run the atomic server with https. It writes the certificate of its authority to the folder."""
    authority, certificate = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(certificate)
    trusted = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(trusted))
    application = DomainDispatcherApplication(create_backend_app)
    with mock.patch.object(S3Response, "put_object", atomic(PLAIN_PUT)):
        server = make_server("localhost", 0, application, threaded=True, ssl_context=certificate)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield S3Server(f"https://localhost:{server.port}", trusted)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
