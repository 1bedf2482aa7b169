"""Check `nginx.conf` against a server: `python deploy/check_proxy.py`. Needs nginx, and the packages of the tests.

nginx runs as this user, on free ports, with the configuration of this folder and a certificate of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import trustme

import trinitylake as tl
from trinitylake.rest import serve

TOKEN = "the-token-of-the-proxy-check"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def configured(folder: Path, port: int, upstream: int) -> Path:
    """Write the configuration with shorter time limits. Returns its path."""
    text = Path(__file__).with_name("nginx.conf").read_text()
    for before, after in (
        ("127.0.0.1:8181", f"127.0.0.1:{upstream}"),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/nginx/lake.", f"{folder}/lake."),
        ("client_header_timeout 15s", "client_header_timeout 1s"),
        ("client_body_timeout 30s", "client_body_timeout 1s"),
        ("trinitylake_connections 100", "trinitylake_connections 20"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    paths = "".join(
        f"{one}_temp_path {folder}/{one};\n" for one in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{text}\n}}\n"
    )
    return folder / "nginx.conf"


def main() -> int:
    """Run the checks. Returns the exit code."""
    if shutil.which("nginx") is None:
        print("nginx is not installed")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="trinitylake-proxy-"))
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(str(folder / "lake.key"))
    for one in certificate.cert_chain_pems:
        one.write_to_path(str(folder / "lake.crt"), append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    lake = tl.create(str(folder / "lake"))
    lake.create_namespace("shop")
    lake.create_table(("shop", "a/b +c"), pa.schema([("id", pa.int64())]))
    with serve(lake, token=TOKEN, behind_proxy=True) as url:
        port = free_port()
        with subprocess.Popen(["nginx", "-c", str(configured(folder, port, int(url.rsplit(":", 1)[1])))]) as proxy:
            try:
                return check(port, context)
            finally:
                proxy.terminate()
                proxy.wait(30)
                shutil.rmtree(folder)


def check(port: int, context: ssl.SSLContext) -> int:
    """Requests that must pass, and clients that must be cut off."""

    def ask(method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
        connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
        response = connection.getresponse()
        return response.status, response.read()

    def closed_within(sent: bytes, seconds: float) -> bool:
        with (
            socket.create_connection(("localhost", port)) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as connection,
        ):
            connection.settimeout(seconds)
            connection.sendall(sent)
            try:
                while connection.recv(65536):
                    pass
            except TimeoutError:
                return False
            except OSError:
                pass
            return True

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            ask("GET", "/healthz")
            break
        except OSError:
            time.sleep(0.05)
    head = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\n"
    checks = {
        "the server answers": ask("GET", "/v1/config")[0] == 200,
        "names keep their escapes": ask("GET", "/v1/namespaces/shop/tables/a%2Fb+%2Bc")[0] == 200,
        "an idempotency key passes": ask(
            "POST", "/v1/namespaces", json.dumps({"namespace": ["n"]}).encode(), **{"Idempotency-Key": "not-a-uuid"}
        )[0]
        == 400,
        "a body above 16 MiB is refused": ask("POST", "/v1/namespaces", b" " * (17 << 20))[0] == 413,
        "headers above 64 KiB are refused": ask("GET", "/v1/config", **{"X-Long": "x" * (70 << 10)})[0] in (400, 431),
        "a client that does not send its headers is cut off": closed_within(head, 10),
        "a client that does not send its body is cut off": closed_within(head + b"Content-Length: 99\r\n\r\n{", 10),
    }
    silent = [socket.create_connection(("localhost", port)) for _ in range(1040)]
    checks["silent connections do not keep others out"] = ask("GET", "/v1/config")[0] in (200, 429)
    for one in silent:
        one.close()
    for name, passed in checks.items():
        print("ok  " if passed else "FAIL", name)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
