"""Signed requests: a client without credentials reads and writes its tables, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import SignError

import trinitylake as tl
from rest import signing_client
from rest.client import Answer, Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import ROWS
from rest.signing_client import ONE_FILE_SYSTEM_EACH, own_process
from s3_server import SECRET_KEY, S3Server
from trinitylake.rest import RestServer, S3Access, ServerOptions
from trinitylake.rest.files.s3_store import S3Store

SHOP = "/v1/latest/namespaces/shop/tables/orders"
WISH = {"X-Iceberg-Access-Delegation": "remote-signing"}


@pytest.fixture
def signing(lake_on_s3: tl.Lakehouse, s3: S3Server, tokens: Path) -> Iterator[RestServer]:
    """A server that signs."""
    access = S3Access(signs_requests=True, storage_options=s3.storage_options)
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        yield server


class Signer:
    """A client that requests signatures for requests to a bucket."""

    def __init__(self, server: RestServer, lake: tl.Lakehouse, s3: S3Server) -> None:
        self.client = Client(server)
        bucket, _, self.root = lake.uri.removeprefix("s3://").partition("/")
        self.bucket = f"{s3.endpoint}/{bucket}"
        self.bucket_name = bucket
        self.location = lake.table("shop.orders").location.removeprefix(f"s3://{bucket}/").rstrip("/")
        self.payroll = lake.table("payroll.orders").location.removeprefix(f"s3://{bucket}/").rstrip("/")

    def __call__(
        self, method: str, uri: str, headers: dict[str, str] | None = None, *, token: str = WALT, **more: Any
    ) -> Answer:
        """`uri` is a path in the bucket unless it has a scheme."""
        body = {
            "method": method,
            "region": "us-east-1",
            "uri": uri if "://" in uri else f"{self.bucket}/{uri}",
            "headers": {name: [value] for name, value in (headers or {}).items()},
            **more,
        }
        return self.client("POST", f"{SHOP}/sign", body, token=token)


@pytest.fixture
def sign(signing: RestServer, lake_on_s3: tl.Lakehouse, s3: S3Server) -> Signer:
    return Signer(signing, lake_on_s3, s3)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[..., Any]]:
    """A process for PyIceberg: in this process, one of its requests reached the store unsigned."""
    with own_process(ONE_FILE_SYSTEM_EACH) as call:
        yield call


def test_pyiceberg_reads_and_writes_with_signatures_alone(
    signing: RestServer, lake_on_s3: tl.Lakehouse, elsewhere: Callable[..., Any]
) -> None:
    properties = elsewhere(signing_client.properties, signing.url, WALT, "shop.orders")
    assert properties["class"] == "FsspecFileIO"
    assert "s3.access-key-id" not in properties
    row = pa.table({"id": pa.array([4], pa.int64())})
    assert elsewhere(signing_client.append, signing.url, WALT, "shop.orders", row) == ([1, 2, 3], [1, 2, 3, 4])
    assert lake_on_s3.table("shop.orders").scan().to_arrow().num_rows == 4


@pytest.mark.parametrize("staged", [False, True])
def test_pyiceberg_creates_a_table_with_signatures_alone(
    signing: RestServer, lake_on_s3: tl.Lakehouse, elsewhere: Callable[..., Any], staged: bool
) -> None:
    assert elsewhere(signing_client.create, signing.url, WALT, "shop.new", ROWS, staged) == [1, 2, 3]
    assert lake_on_s3.table("shop.new").scan().to_arrow().num_rows == 3


def test_pyiceberg_with_a_reader_s_token_cannot_write(
    signing: RestServer, lake_on_s3: tl.Lakehouse, elsewhere: Callable[..., Any]
) -> None:
    with pytest.raises(SignError):
        elsewhere(signing_client.append, signing.url, RITA, "shop.orders", ROWS)
    assert lake_on_s3.table("shop.orders").scan().to_arrow().num_rows == 3


def test_pyiceberg_reads_two_tables_in_turn(
    signing: RestServer, lake_on_s3: tl.Lakehouse, elsewhere: Callable[..., Any]
) -> None:
    with lake_on_s3.transaction() as txn:
        txn.create_table("shop.returns", ROWS).append(ROWS.slice(1))
    found = elsewhere(signing_client.read_in_turn, signing.url, WALT, "shop.orders", "shop.returns")
    assert found == [[1, 2, 3], [2, 3], [1, 2, 3]]


def test_file_systems_of_pyiceberg_share_their_signer_by_default(elsewhere: Callable[..., Any]) -> None:
    """The reason for an advice in docs/guide/rest.md, which can be removed if this test fails. fsspec gives all threads
    and tables with the same settings one `S3FileSystem`, and in each thread PyIceberg replaces its signer
    (apache/iceberg-python#3896). Between removing and adding a signer, requests are not signed, and later ones are
    signed for the last table."""
    with own_process({}) as call:
        assert call(signing_client.signers_of_two_tables) == ["second", "second"]
    assert elsewhere(signing_client.signers_of_two_tables) == ["first", "second"]


def test_signing_is_off_by_default(lake_on_s3: tl.Lakehouse, tokens: Path, s3: S3Server) -> None:
    with running(lake_on_s3, token_file=tokens) as server:
        client = Client(server)
        assert client("POST", f"{SHOP}/sign", {}, token=ROOT).code == 406
        assert client("GET", SHOP, headers=WISH, token=ROOT).body["config"] == {}
        assert not [one for one in client("GET", "/v1/config", token=ROOT).body["endpoints"] if "/sign" in one]


def test_a_load_returns_the_signing_endpoint(sign: Signer) -> None:
    loaded = sign.client("GET", SHOP, headers=WISH, token=WALT).body
    config = loaded["config"]
    assert (config["s3.remote-signing-enabled"], config["s3.signer"]) == ("true", "S3V4RestSigner")
    assert config["s3.signer.endpoint"] == config["signer.endpoint"] == f"{SHOP[1:]}/sign"
    assert loaded["storage-credentials"] == []
    assert [one for one in sign.client("GET", "/v1/config", token=WALT).body["endpoints"] if one.endswith("/sign")]
    assert sign.client("GET", SHOP, token=WALT).body["config"] == {}


def test_a_signature_creates_an_object_and_replaces_none(sign: Signer, s3: S3Server) -> None:
    uri = f"{sign.location}/data/new.parquet"
    signed = sign("PUT", uri).body
    headers = {name: ", ".join(values) for name, values in signed["headers"].items()}
    assert headers["if-none-match"] == "*"
    assert "if-none-match" in headers["Authorization"]
    assert SECRET_KEY not in str(signed)
    assert requests.put(signed["uri"], b"one", headers=headers, timeout=30).status_code == 200
    assert requests.put(signed["uri"], b"two", headers=headers, timeout=30).status_code == 412
    assert s3.files(sign.bucket_name)[uri] == b"one"
    got = sign("GET", uri, {"Range": "bytes=0-1"}).body
    assert "range" not in got["headers"]["Authorization"][0].lower()
    headers = {name: values[0] for name, values in got["headers"].items()}
    assert requests.get(got["uri"], headers=headers, timeout=30).content == b"one"


def test_a_large_file_is_written_in_parts(sign: Signer, s3: S3Server) -> None:
    uri = f"{sign.location}/data/large.parquet"

    def send(method: str, query: str, body: bytes = b"") -> requests.Response:
        signed = sign(method, f"{uri}{query}").body
        headers = {name: values[0] for name, values in signed["headers"].items()}
        response = requests.request(method, signed["uri"], data=body, headers=headers, timeout=30)
        assert response.status_code in (200, 204), response.text
        return response

    def begun() -> str:
        return send("POST", "?uploads").text.partition("<UploadId>")[2].partition("</UploadId>")[0]

    upload = begun()
    tag = send("PUT", f"?partNumber=1&uploadId={upload}", b"large").headers["ETag"]
    part = f"<Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>"
    send("POST", f"?uploadId={upload}", body.encode())
    assert s3.files(sign.bucket_name)[uri] == b"large"
    send("DELETE", f"?uploadId={begun()}")


def test_readers_read_and_writers_write(sign: Signer) -> None:
    operations = {
        "GET": ("", "?x-id=GetObject", "?partNumber=1"),
        "HEAD": ("",),
        "PUT": ("", "?partNumber=1&uploadId=x"),
        "POST": ("?uploads", "?uploads=", "?uploadId=x"),
        "DELETE": ("?uploadId=x",),
    }
    for method, queries in operations.items():
        for query in queries:
            uri = f"{sign.location}/data/a.parquet{query}"
            assert sign(method, uri).code == 200, (method, query)
            expected = 200 if method in ("GET", "HEAD") else 403
            assert sign(method, uri, token=RITA).code == expected, (method, query)


def test_the_past_is_read_only(sign: Signer, lake_on_s3: tl.Lakehouse) -> None:
    path = SHOP.replace("latest", f"version~{lake_on_s3.version}") + "/sign"
    body = {"region": "us-east-1", "uri": f"{sign.bucket}/{sign.location}/data/a", "headers": {}}
    assert sign.client("POST", path, {**body, "method": "GET"}, token=WALT).code == 200
    assert sign.client("POST", path, {**body, "method": "PUT"}, token=WALT).code == 403


def test_a_query_that_does_something_else_is_not_signed(sign: Signer) -> None:
    queries = [
        "?acl",
        "?policy",
        "?tagging",
        "?retention",
        "?legal-hold",
        "?torrent",
        "?versionId=1",
        "?select&select-type=2",
        "?restore",
        "?attributes",
        "?delete",
        "?uploads&acl",
        "?x-id=GetObject&acl",
        "?x-id=a;acl",
        "?x-id=a+b",
        "?%61cl",
        "?x-id=a&x-id=b",
        "?response-content-type=text/html",
        "?X-Amz-Signature=1&X-Amz-Credential=2",
        "?partNumber=1",
        "?uploadId=x",
        "?uploadId=x&partNumber=1&acl",
    ]
    meant = {("GET", "?partNumber=1"), ("POST", "?uploadId=x"), ("DELETE", "?uploadId=x")}
    for method in ["GET", "PUT", "POST", "DELETE"]:
        for query in queries:
            expected = 200 if (method, query) in meant else 400 if "+" in query or ";" in query else 403
            assert sign(method, f"{sign.location}/data/a{query}", token=ROOT).code == expected, query


def test_no_signature_permits_deletion(sign: Signer, s3: S3Server) -> None:
    """No request that deletes objects is signed, because older versions need files that an engine would delete. This
    includes `uploadId` without a value, which some stores treat as the deletion of the object."""
    key = f"{sign.location}/data/a"
    host = s3.endpoint.removeprefix("http://")
    objects = ["", "?x-id=DeleteObject", "?versionId=1", "?uploadId=", "?uploadId", "?uploadId=%20", "?uploadId=%00"]
    for method in ("DELETE", "delete", "Delete", " DELETE", "DELETE "):
        for query in objects:
            assert sign(method, f"{key}{query}", token=ROOT).code in (400, 403), (method, query)
    many = ["delete", "delete=", "delete=1", "Delete", "DELETE", "%64elete", "x-id=DeleteObjects&delete"]
    many += ["delete&x-id=DeleteObjects", "delete&uploads", "uploadId=1&delete", "delete%3D", "x-id=a&delete&prefix=a"]
    places = [f"{sign.bucket}", f"{sign.bucket}/", f"{sign.bucket}//", f"{sign.bucket}/{key}", f"{sign.bucket}/{key}/"]
    places += [f"http://{sign.bucket_name}.{host}/", f"{sign.bucket}/.", f"{sign.bucket}/{sign.location}/.."]
    for method in ("POST", "post", "PUT", "DELETE", "GET"):
        for place in places:
            for query in many:
                assert sign(method, f"{place}?{query}", token=ROOT).code in (400, 403), (method, place, query)
    parts = ["?partNumber=1&uploadId=", "?partNumber=&uploadId=x", "?partNumber=0&uploadId=x", "?partNumber&uploadId=x"]
    for query in parts:
        assert sign("PUT", f"{key}{query}", token=ROOT).code == 403, query  # would replace the object
    assert sign("DELETE", f"{key}?uploadId=x", token=ROOT).code == 200  # aborts an upload that does not exist yet
    header = {"x-http-method-override": "DELETE", "x-amz-meta-a": "b"}
    assert sign("PUT", key, header, token=ROOT).code == 403


def test_a_method_that_does_something_else_is_not_signed(sign: Signer) -> None:
    for method in ("DELETE", "PATCH", "OPTIONS", "TRACE", "get", "POST", ""):
        assert sign(method, f"{sign.location}/data/a", token=ROOT).code == 403, method


def test_requests_outside_of_the_table_are_not_signed(sign: Signer, s3: S3Server) -> None:
    inside, host = sign.location, s3.endpoint.removeprefix("http://")
    refused = [
        "",
        "?list-type=2",
        inside,
        f"{inside}/",
        f"{inside}-2/a",
        f"{inside}x/a",
        f"{sign.payroll}/data/a",
        f"{sign.root}_version/0",
        sign.root,
        f"{inside}/../../payroll/a",
        f"{inside}/%2e%2e/%2E%2e/{sign.payroll}/a",
        f"{inside}/..%2f..%2fa",
        f"{inside}/./a",
        f"{inside}//a",
        f"{inside}%2f/a",
        f"{inside}/a%00b",
        f"{inside}/a%0ab",
        f"/{inside}/a",
        f"../other-bucket/{inside}/a",
        f"{s3.endpoint}/other-bucket/{inside}/a",
        f"{s3.endpoint}/{sign.bucket_name}x/{inside}/a",
        f"{s3.endpoint}//{sign.bucket_name}/{inside}/a",
        f"http://other.{host}/{inside}/a",
        f"https://{host}/{sign.bucket_name}/{inside}/a",
        f"http://evil.example/{sign.bucket_name}/{inside}/a",
        f"http://{host}@evil.example/{sign.bucket_name}/{inside}/a",
        f"http://user@{host}/{sign.bucket_name}/{inside}/a",
        f"http://{host}.evil.example/{sign.bucket_name}/{inside}/a",
        f"{sign.bucket}/{inside}/a#b",
        "http://sts.amazonaws.com/?Action=GetCallerIdentity",
    ]
    for method in ("GET", "PUT"):
        for uri in refused:
            assert sign(method, uri, token=WALT).code == 403, (method, uri)
    for uri in (f"{inside}/a+b", f"{inside}/a\\b", f"{inside}/%ff", f"{inside}/a b", f"{inside}/ä", f"{inside}/a\nb"):
        assert sign("GET", uri, token=WALT).code == 400, uri
    assert sign("GET", f"{inside}/a%20b%2Bc", token=WALT).code == 200


def test_bucket_in_a_request_is_interpreted_as_by_the_store() -> None:
    """The signer takes the bucket from the same part of a request as the store. A store with path-style buckets ignores
    the host, so otherwise a signature for a key of the lakehouse is valid for another bucket."""
    keys = {"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://store:9000", "region": "us-east-1"}
    in_path, in_host = "http://store:9000/lake/root/a", "http://lake.store:9000/root/a"
    store = S3Store("s3://lake/root", keys)
    assert (store.key_of(in_path), store.key_of(in_host)) == ("root/a", None)
    store = S3Store("s3://lake/root", {**keys, "virtual_hosted_style_request": "true"})
    assert (store.key_of(in_path), store.key_of(in_host)) == (None, "root/a")
    store = S3Store("s3://lake/root", {"access_key_id": "a", "secret_access_key": "b", "region": "eu-west-1"})
    amazon = "s3.eu-west-1.amazonaws.com"
    assert [store.key_of(f"https://{one}") for one in (f"{amazon}/lake/a", f"lake.{amazon}/a")] == ["a", "a"]


def test_only_the_table_is_listed(sign: Signer) -> None:
    def listed(query: str) -> int:
        return sign("GET", f"?{query}").code

    assert listed(f"list-type=2&prefix={sign.location}/") == 200
    assert listed(f"list-type=2&prefix={sign.location.replace('/', '%2F')}%2Fdata&delimiter=%2F&max-keys=5") == 200
    for prefix in ("", sign.location, f"{sign.location}-2/", sign.root, f"{sign.payroll}/", f"{sign.location}/../x"):
        assert listed(f"list-type=2&prefix={prefix}") == 403, prefix
    for query in ("list-type=2", f"prefix={sign.location}/", f"versions&prefix={sign.location}/", "location", "policy"):
        assert listed(query) == 403, query
    assert listed(f"list-type=2&prefix={sign.location}/&prefix=") == 403
    assert listed(f"list-type=2&prefix={sign.location}/&policy") == 403
    for method in ("HEAD", "PUT", "POST", "DELETE"):
        assert sign(method, f"?list-type=2&prefix={sign.location}/", token=ROOT).code == 403
    assert sign("POST", "?delete", token=ROOT).code == 403


def test_a_header_that_does_something_else_is_not_signed(sign: Signer) -> None:
    headers = [
        "x-amz-copy-source",
        "X-Amz-Copy-Source-Range",
        "x-amz-acl",
        "x-amz-grant-full-control",
        "x-amz-website-redirect-location",
        "x-amz-object-lock-mode",
        "x-amz-bypass-governance-retention",
        "x-amz-tagging",
        "x-amz-metadata-directive",
        "x-amz-meta-a",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-something-new",
    ]
    for header in headers:
        assert sign("PUT", f"{sign.location}/data/a", {header: "x"}, token=ROOT).code == 403, header


def test_ambiguous_headers_are_not_signed(sign: Signer) -> None:
    uri = f"{sign.location}/data/a"
    body = {"region": "us-east-1", "uri": f"{sign.bucket}/{uri}", "method": "PUT"}

    def code(headers: Any) -> int:
        return sign.client("POST", f"{SHOP}/sign", {**body, "headers": headers}, token=ROOT).code

    assert code({"x-amz-content-sha256": ["UNSIGNED-PAYLOAD", "x"]}) == 403
    assert code({"x-amz-trailer": ["a"], "X-Amz-Trailer": ["b"]}) == 403
    assert code({"content-md5": ["a\r\nx-amz-acl: public-read"]}) == 400
    assert code({"x-amz-content-sha256": ["nonsense"]}) == 400
    assert code({"x-amz-trailer": "a"}) == 400
    mine = {
        "Host": "evil.example",
        "Authorization": "x",
        "x-amz-date": "1",
        "x-amz-security-token": "x",
        "If-Match": "a",
    }
    signed = sign("PUT", uri, mine).body["headers"]
    assert "evil" not in str(signed)
    assert signed["X-Amz-Date"] != ["1"]


def test_an_invalid_sign_request_is_refused(sign: Signer) -> None:
    uri = f"{sign.location}/data/a"
    assert sign("GET", uri, region="eu-west-1").code == 403
    assert sign("GET", uri, provider="gcs").code == 400
    assert sign("GET", uri, provider="s3").code == 200
    for body in ({}, [], {"method": "GET"}, {"method": 1, "uri": 2, "region": 3, "headers": 4}):
        assert sign.client("POST", f"{SHOP}/sign", body, token=ROOT).code == 400
    assert sign("GET", "http://[::1/a").code == 400


def test_signatures_need_a_role(sign: Signer) -> None:
    body = {"method": "GET", "region": "us-east-1", "uri": f"{sign.bucket}/{sign.payroll}/data/a", "headers": {}}
    path = SHOP.replace("shop", "payroll") + "/sign"
    assert sign.client("POST", path, body, token=WALT).code == 403
    assert sign.client("POST", path, body, token=ROOT).code == 200


def test_for_a_staged_table_only_its_own_folder_is_signed(sign: Signer) -> None:
    def code(uri: str, name: str = "new", token: str = WALT) -> int:
        body = {"method": "PUT", "region": "us-east-1", "uri": f"{sign.bucket}/{sign.root}{uri}", "headers": {}}
        return sign.client("POST", SHOP.replace("orders", name) + "/sign", body, token=token).code

    assert code("shop/new-0123abcd/data/a") == 200
    assert code("shop/new-0123abcd/data/a", token=RITA) == 403
    for uri in ("shop/new/a", "shop/new-/a", "shop/new-x/a", "shop/new-0123abcd", "shop/a", "payroll/new-0123abcd/a"):
        assert code(uri) == 403, uri
    assert code("shop/new-0123abcd-89abcdef/data/a") == 403  # a file of another table than `new-0123abcd`
    assert code(f"{sign.location.removeprefix(sign.root)}/data/a", name="order") == 403
    assert code(f"{sign.location.removeprefix(sign.root)}/data/a", name="orders") == 200


@pytest.mark.parametrize("change", ["move", "drop"])
def test_no_request_for_a_table_that_left_its_name_is_signed(
    sign: Signer, lake_on_s3: tl.Lakehouse, change: str
) -> None:
    """No request is signed for the former name of a renamed table. A name that does not exist could be that of a staged
    table, but the former name must not give access to files that were written after the rename."""
    path = f"{SHOP}/sign"
    body = {"method": "GET", "region": "us-east-1", "uri": f"{sign.bucket}/{sign.location}/data/a", "headers": {}}
    assert sign.client("POST", path, body, token=RITA).code == 200
    with lake_on_s3.transaction() as txn:
        txn.rename_table("shop.orders", "payroll.secret") if change == "move" else txn.drop_table("shop.orders")
    for method in ("GET", "PUT"):
        for token in (RITA, WALT):
            assert sign.client("POST", path, {**body, "method": method}, token=token).code == 403, (method, token)
    assert sign.client("POST", path, body, token=ROOT).code == 200


def test_a_chosen_location_is_not_signed_for(sign: Signer, lake_on_s3: tl.Lakehouse) -> None:
    columns = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
    body = {"name": "trap", "schema": columns, "location": f"{lake_on_s3.uri}payroll"}
    assert sign.client("POST", "/v1/latest/namespaces/shop/tables", body, token=WALT).code == 403
    assert sign.client("POST", "/v1/latest/namespaces/shop/tables", body, token=ROOT).code == 200
    request = {"method": "GET", "region": "us-east-1", "uri": f"{sign.bucket}/{sign.payroll}/data/a", "headers": {}}
    path = SHOP.replace("orders", "trap") + "/sign"
    assert sign.client("POST", path, request, token=WALT).code == 403
    assert sign.client("POST", path, request, token=ROOT).code == 200


def test_signing_is_audited(sign: Signer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sign("GET", f"{sign.location}/data/a")
        sign("PUT", f"{sign.location}/data/a", {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
        sign("GET", f"{sign.payroll}/data/a", token=RITA)
    lines = [(one.message, one.__dict__["fields"]) for one in caplog.records if one.name == "trinitylake.rest.audit"]
    logged = [(message, fields["who"], fields["code"]) for message, fields in lines]
    assert logged == [("sign PUT", "walt", 200), ("sign 'GET'", "rita", 403)]
    text = "\n".join(f"{one.getMessage()} {one.__dict__}" for one in caplog.records)
    assert SECRET_KEY not in text
    assert "Signature=" not in text
