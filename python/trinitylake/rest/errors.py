"""HTTP status and error type of each exception, by the error model of the Iceberg REST specification.

The status decides what an engine does next. After 409 it deletes the files that it wrote and tries again; after 5xx for
a commit it keeps them and checks whether the commit succeeded. So a conflict is always 409, and an unknown outcome is
always 500 `CommitStateUnknownException`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError as InvalidModel
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ValidationError,
    ViewAlreadyExistsError,
)
from starlette.responses import Response

from trinitylake import errors as ours
from trinitylake.base.foreign_errors import errors_as
from trinitylake.rest.secret_redaction import without_secrets

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

logger = logging.getLogger("trinitylake.rest")


class RestError(Exception):
    """An error response that a handler chose."""

    def __init__(self, code: int, type: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.type = type


def bad_request(message: str) -> RestError:
    """400: the request is invalid."""
    return RestError(400, "BadRequestException", message)


def too_large(message: str) -> RestError:
    """413: the request exceeds a limit."""
    return RestError(413, "RequestTooLargeException", message)


def unsupported(message: str) -> RestError:
    """406: the client has to do this by itself."""
    return RestError(406, "UnsupportedOperationException", message)


def unavailable(message: str) -> RestError:
    """503: the request may succeed later."""
    return RestError(503, "ServiceUnavailableException", message)


def client_faults(what: str, document: Any = None) -> errors_as:
    """Map errors that libraries raise for the input of a client to 400. For `document` see `input_fault`.

    Not for commits: after 400 a client deletes the files that it wrote.
    """

    def mapped(error: Exception) -> RestError | None:
        if isinstance(error, (RestError, InvalidModel, ours.TrinityLakeError, OSError, MemoryError, *_FORESEEN)):
            return None
        logger.info("%s is invalid", what, exc_info=error)
        return bad_request(f"{what} is invalid: {input_fault(error, document)}")

    return errors_as(mapped)


def input_fault(error: Exception, document: Any = None) -> str:
    """Message for a client about its invalid input, from the error of a library, without terms of Python.

    Args:
        error: the error.
        document: the JSON that the library got, in which the value that an `AttributeError` names is looked up.
    """
    if isinstance(error, RecursionError):
        return "it has too many levels"
    if isinstance(error, KeyError) and _FIELD.fullmatch(str(error.args[0] if error.args else "")):
        return f"{error.args[0]!r} is required"
    if isinstance(error, AttributeError) and (kind := _JSON_TYPES.get(type(error.obj))) is not None:
        found = [path for path, value in _values(document) if value is error.obj]
        return f"{found[0] if len(found) == 1 else 'a field'} must not be {kind}"
    is_worded = isinstance(error, ValueError) or type(error).__module__.startswith(("pyiceberg.", "pyarrow."))
    if is_worded and str(error) and not isinstance(error, UnicodeError) and not _PYTHON.match(str(error)):
        return str(error)
    return "a field is missing or has a value of another type"


def _values(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in a JSON document with their paths, as `a.0.b`."""
    yield path, document
    if isinstance(document, dict | list):
        for name, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from _values(value, f"{path}.{name}" if path else str(name))


#: JSON names of the types of Python values.
_JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}
#: The form of names of fields in the specification; a library's own names have underscores.
_FIELD = re.compile("[a-z-]+")
#: Messages of Python's own `ValueError`s.
_PYTHON = re.compile(r"invalid literal for|could not convert|(too many|not enough) values|Exceeds the limit|None type")


class _Answer(NamedTuple):
    code: int
    type: str


#: The first matching class decides, so subclasses come before their bases.
_ANSWERS: tuple[tuple[type[BaseException], _Answer], ...] = (
    (NoSuchNamespaceError, _Answer(404, "NoSuchNamespaceException")),
    (NoSuchTableError, _Answer(404, "NoSuchTableException")),
    (NoSuchViewError, _Answer(404, "NoSuchViewException")),
    (NamespaceAlreadyExistsError, _Answer(409, "AlreadyExistsException")),
    (TableAlreadyExistsError, _Answer(409, "AlreadyExistsException")),
    (ViewAlreadyExistsError, _Answer(409, "AlreadyExistsException")),
    (NamespaceNotEmptyError, _Answer(409, "NamespaceNotEmptyException")),
    (CommitFailedException, _Answer(409, "CommitFailedException")),
    (CommitStateUnknownException, _Answer(500, "CommitStateUnknownException")),
    (ours.CommitConflict, _Answer(409, "CommitFailedException")),
    (ours.ProducerFenced, _Answer(409, "ProducerFencedException")),
    (ours.CheckFailed, _Answer(409, "CheckFailedException")),
    (ours.CommitStateUnknown, _Answer(500, "CommitStateUnknownException")),
    (ours.TransactionExpired, _Answer(410, "TransactionExpiredException")),
    (ours.TransactionClosed, _Answer(410, "TransactionClosedException")),
    (ours.VersionNotFound, _Answer(404, "NotFoundException")),
    (ours.VersionExpired, _Answer(404, "NotFoundException")),
    (ours.ObjectNotFound, _Answer(404, "NotFoundException")),
    (ours.ObjectAlreadyExists, _Answer(409, "AlreadyExistsException")),
    (ours.NamespaceNotEmpty, _Answer(409, "NamespaceNotEmptyException")),
    (ours.LakehouseMoved, _Answer(403, "ForbiddenException")),  # a copy is read-only, as past versions are
    (ours.NotALakehouse, _Answer(404, "NotFoundException")),
    (ours.UnsupportedVersion, _Answer(406, "UnsupportedOperationException")),
    (ours.RegistrationFailed, _Answer(400, "BadRequestException")),
    (ours.InvalidName, _Answer(400, "BadRequestException")),
    (ours.InvalidLocation, _Answer(400, "BadRequestException")),
    (ours.InvalidArgument, _Answer(400, "BadRequestException")),
    (ValidationError, _Answer(400, "BadRequestException")),
    (ours.PermissionDenied, _Answer(500, "StorageException")),
    (ours.CorruptFile, _Answer(500, "CorruptFileException")),
)


_FORESEEN = tuple(kind for kind, _ in _ANSWERS)


def error_response(code: int, type: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error response. Secrets are removed from the message."""
    body = json.dumps({"error": {"message": without_secrets(message), "type": type, "code": code}})
    return Response(body, code, media_type="application/json", headers=headers)


def response_of(error: Exception, message_of: Callable[[Exception], str]) -> Response:
    """The response for an exception. An unexpected exception is logged, and its text is not sent.

    `message_of` returns the message of an error without names that the principal may not see
    (`security/name_redaction.py`).
    """
    if isinstance(error, RestError):
        return error_response(error.code, error.type, message_of(error))
    if isinstance(error, InvalidModel):
        return error_response(400, "BadRequestException", _model_message(error))
    if isinstance(error, UnicodeError):
        return error_response(400, "BadRequestException", "a text contains half of a surrogate pair")
    for kind, answer in _ANSWERS:
        if isinstance(error, kind):
            return error_response(
                *answer, _iceberg_wording(message_of(error), isinstance(error, CommitFailedException))
            )
    if isinstance(error, ours.StorageError):
        logger.warning("storage failed: %s", error)
        message = "the storage failed; see the log of the server"
        if error.retryable:
            return error_response(503, "ServiceUnavailableException", message, {"Retry-After": "1"})
        return error_response(500, "StorageException", message)
    logger.error("unexpected error", exc_info=error)
    return error_response(500, "InternalServerError", "the server failed; see its log")


def cut_off(may_have_changed: bool, is_known: bool) -> Response:
    """The response to a request that a shutdown interrupts.

    Args:
        may_have_changed: whether the thread of the request still runs, so that it may commit.
        is_known: whether the request has an idempotency key, so that it can be sent again (`request/idempotency.py`).

    Clients retry after 503, and delete the files that they wrote if the retry conflicts. So an interrupted commit
    without a key is answered as a commit with an unknown outcome.
    """
    if may_have_changed and not is_known:
        return error_response(
            500,
            "CommitStateUnknownException",
            "the server shuts down while the request runs: check whether its change was committed, then send it again",
        )
    message = "the server shuts down: send the request again"
    return error_response(503, "ServiceUnavailableException", message, {"Retry-After": "1"})


def _model_message(error: InvalidModel) -> str:
    """Positions and messages of the first five errors, without the input, which may be large."""
    errors = error.errors(include_input=False)
    found = [f"{'.'.join(map(str, one['loc'])) or 'the body'} {_rule(one)}" for one in errors[:5]]
    return "; ".join(found) + (f", and {len(errors) - 5} more" if len(errors) > 5 else "")


def _rule(error: ErrorDetails) -> str:
    """The rule that a value violates, in the words of JSON instead of pydantic's."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return f"is invalid: {input_fault(context['error'])}"
    if kind in ("literal_error", "enum"):  # the names of members of an enumeration are their values in capitals
        expected = re.sub(r"\w+\.([A-Z_]+)", lambda name: f"'{name[1].lower()}'", context["expected"])
        return f"must be {expected}"
    if kind == "union_tag_invalid":
        return f"has an unknown {context['discriminator']}"
    if kind == "union_tag_not_found":
        return f"must be an object with the field {context['discriminator']}"
    if kind == "uuid_parsing":
        return "must be a UUID"
    rule = next((rule for kinds, rule in _RULES.items() if kind.startswith(kinds)), None)
    return rule or error["msg"].replace("Input should", "must").replace("should", "must")


#: Rules by the beginning of pydantic's types of errors.
_RULES: dict[str | tuple[str, ...], str] = {
    "missing": "is required",
    "extra_forbidden": "is unknown",
    ("string_type", "string_sub_type"): "must be a string",
    ("int_type", "int_parsing", "int_from_float"): "must be an integer",
    "float": "must be a number",
    "bool": "must be true or false",
    ("list_type", "tuple_type", "set_type", "frozen_set_type"): "must be a list",
    ("dict_type", "model_type", "model_attributes_type", "dataclass_type"): "must be an object",
    "uuid": "must be a UUID",
}


#: Messages of PyIceberg and TrinityLake, and how Iceberg's Java library words them, which clients' tests expect.
_WORDINGS = [
    (re.compile(pattern, re.S), replacement)
    for pattern, replacement in (
        (r"^Namespace (\S+) does not exists?$", r"Namespace does not exist: \1"),
        (r"^Namespace (\S+) already exists$", r"Namespace already exists: \1"),
        (r"^(Table|View) (\S+) already exists$", r"\1 already exists: \2"),
        (r"^(Requirement failed: last assigned \w+ id) has changed\b", r"\1 changed"),
        (r"^Requirement failed: current schema id has changed\b", "Requirement failed: current schema changed"),
        (r"^Requirement failed: default spec id has changed\b", "Requirement failed: default partition spec changed"),
        (r"^Requirement failed: default sort order id has changed\b", "Requirement failed: default sort order changed"),
        (r"^Table UUID does not match\b", "Requirement failed: UUID does not match"),
    )
]
_CREATION = re.compile(r"^Table already exists\b.*", re.S)


def _iceberg_wording(message: str, is_commit: bool) -> str:
    """The message in the words of Iceberg's Java library, if that library has a corresponding message."""
    if is_commit and _CREATION.match(message):
        return "Requirement failed: table already exists"
    for pattern, replacement in _WORDINGS:
        message, n_replaced = pattern.subn(replacement, message)
        if n_replaced:
            break
    return message
