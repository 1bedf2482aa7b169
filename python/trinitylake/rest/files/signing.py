"""Signs S3 requests of clients, so that they need no credentials.

Only requests that are understood completely are signed: for objects below the location of the table, or a list of them,
with a method, query and headers that only read or write. Everything else is refused. A write can only create an object:
the signature covers the condition that the object does not exist.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from pydantic import BaseModel, Field, field_validator

from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.files.s3_store import S3Store, Scope
from trinitylake.rest.security.authorization import forbidden

#: Query parameters of each operation. `x-id` repeats the name of the operation; S3 ignores it.
_HINT = "x-id"
_READ = (frozenset[str](), frozenset({"partNumber"}))
_LIST_NEEDS = {"list-type", "prefix"}
_LIST_MAY = {"delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}
_WRITES = {
    "PUT": (frozenset[str](), frozenset({"partNumber", "uploadId"})),
    "POST": (frozenset({"uploads"}), frozenset({"uploadId"})),
    "DELETE": (frozenset({"uploadId"}),),  # aborts an upload; objects are never deleted
}
#: Values of parameters. Some stores ignore an empty one, and would then delete or replace the object.
_VALUES = {"partNumber": re.compile(r"[1-9][0-9]{0,4}"), "uploadId": re.compile(r"[^\s\x00-\x1f]+")}

#: Headers that are signed. Other headers of Amazon are refused: some copy other objects or grant access.
_SIGNED = re.compile(
    r"content-md5|x-amz-(content-sha256|decoded-content-length|trailer|sdk-checksum-algorithm|checksum-[a-z0-9-]+"
    r"|server-side-encryption|server-side-encryption-aws-kms-key-id|expected-bucket-owner|user-agent)"
)
#: Headers that the signature replaces.
_REPLACED = {"x-amz-date", "x-amz-security-token", "authorization"}
_PAYLOAD = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER")
_UNSIGNED = "UNSIGNED-PAYLOAD"


class SignRequest(BaseModel):
    """Body of `sign`: a request to S3 before it is sent."""

    region: str
    method: str
    uri: str = Field(max_length=16384)
    headers: dict[str, list[str]]
    provider: str | None = None

    @field_validator("uri")
    @classmethod
    def _readable(cls, uri: str) -> str:
        if not uri.isascii() or not uri.isprintable() or " " in uri:
            raise ValueError("a URI must be printable ASCII without spaces")
        urlsplit(uri)
        return uri


def check(request: SignRequest, store: S3Store, scope: Scope) -> bool:
    """Check that a request is within a scope. Returns whether it creates an object.

    Raises:
        RestError: 403 for a request outside of the scope or with an unknown meaning, 400 for an invalid request.
    """
    if request.provider not in (None, "s3"):
        raise bad_request(f"only requests to s3 are signed, not {request.provider!r}")
    if request.region != store.region:
        raise forbidden(f"only requests to the region {store.region} are signed")
    query = _query(request.uri)
    operation = frozenset(query.keys() - {_HINT})
    escaped = store.key_of(request.uri)
    if escaped is None:
        raise forbidden("only requests to the bucket of the lakehouse are signed")
    if not escaped:
        if request.method == "GET" and operation >= _LIST_NEEDS and operation <= _LIST_NEEDS | _LIST_MAY:
            _require_inside(query["prefix"], scope, is_prefix=True)
            return False
        raise forbidden("the only request on the bucket itself that is signed lists the files of the table")
    _require_inside(_unescaped(escaped), scope)
    if any(not _VALUES[name].fullmatch(query[name]) for name in operation & _VALUES.keys()):
        raise forbidden("a query with an invalid value is not signed")
    if request.method in ("GET", "HEAD"):
        if operation not in _READ:
            raise forbidden("a request with that query is not signed")
        return False
    if operation not in _WRITES.get(request.method, ()):
        raise forbidden(f"{request.method} with that query is not signed")
    if not scope.writable:
        raise forbidden("only reading is allowed here")
    return (request.method == "PUT" and not operation) or (request.method == "POST" and operation == {"uploadId"})


def signed(request: SignRequest, store: S3Store, creates: bool) -> dict[str, list[str]]:
    """The headers with which a checked request must be sent.

    Raises:
        RestError: 403 for a header that could change the effect of the request.
    """
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    headers: dict[str, str] = {}
    for name, values in request.headers.items():
        name = name.lower()
        if _SIGNED.fullmatch(name) and len(values) == 1 and name not in headers:
            headers[name] = values[0].strip()
        elif (name.startswith("x-amz-") or name == "content-md5") and name not in _REPLACED:
            raise forbidden(f"a request with the header {name!r} is not signed")
    payload = headers.setdefault("x-amz-content-sha256", _UNSIGNED)
    if not _PAYLOAD.fullmatch(payload) or any(not value.isprintable() for value in headers.values()):
        raise RestError(400, "BadRequestException", "a header has an invalid value")
    if creates:
        headers["if-none-match"] = "*"

    class Signer(S3SigV4Auth):  # type: ignore[misc]
        """Uses the payload hash of the client: the server does not have the payload."""

        def payload(self, request: AWSRequest) -> str:
            return payload

    ready = AWSRequest(request.method, request.uri, headers=headers)
    Signer(store.credentials(), "s3", store.region).add_auth(ready)
    return {name: [value] for name, value in ready.headers.items()}


def _query(uri: str) -> dict[str, str]:
    text = urlsplit(uri).query
    if "+" in text or ";" in text:  # ambiguous: a space or a plus, one parameter or two
        raise bad_request("the query of the URI must be escaped")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError as error:
        raise bad_request("the query of the URI cannot be read") from error
    if len(dict(pairs)) < len(pairs):
        raise forbidden("a query with a repeated parameter is not signed")
    return dict(pairs)


def _unescaped(key: str) -> str:
    # Ambiguous: some stores decode a plus in a path as a space.
    if "+" in key or "\\" in key:
        raise bad_request("the path of the URI must be escaped")
    try:
        return unquote_to_bytes(key).decode()
    except UnicodeDecodeError as error:
        raise bad_request("the path of the URI is not UTF-8") from error


def _require_inside(key: str, scope: Scope, is_prefix: bool = False) -> None:
    segments = key[len(scope.key) + 1 :].split("/")
    if is_prefix and segments[-1] == "":  # a prefix may end in a slash
        segments.pop()
    is_plain = all(segment not in ("", ".", "..") and segment.isprintable() for segment in segments)
    if not key.startswith(f"{scope.key}/") or not is_plain:
        raise forbidden("only requests to files of the table are signed")
