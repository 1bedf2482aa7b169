"""HTTP status and error type of each exception, by the error model of the Iceberg REST specification.

The status decides what an engine does next. After 409 it deletes the files that it wrote and tries again; after 5xx for
a commit it keeps them and checks whether the commit succeeded. So a conflict is always 409, and an unknown outcome is
always 500 `CommitStateUnknownException`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

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

logger = logging.getLogger("trinitylake.rest")


class RestError(Exception):
    """An error response that a handler chose, perhaps with headers."""

    def __init__(self, code: int, type: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.headers = headers


def bad_request(message: str) -> RestError:
    """400: the request is invalid."""
    return RestError(400, "BadRequestException", message)


def client_faults(what: str) -> errors_as:
    """Map errors that libraries raise for the input of a client to 400.

    Not for commits: after 400 a client deletes the files that it wrote.
    """

    def mapped(error: Exception) -> RestError | None:
        if isinstance(error, (RestError, InvalidModel, ours.TrinityLakeError, OSError, MemoryError, *_FORESEEN)):
            return None
        logger.info("%s is invalid", what, exc_info=error)
        return bad_request(f"{what} is invalid: {str(error) or type(error).__name__}")

    return errors_as(mapped)


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
    (
        UnicodeError,
        _Answer(400, "BadRequestException"),
    ),  # half a surrogate pair
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

    `message_of` returns the message for the principal (`security/error_redaction.py`).
    """
    if isinstance(error, RestError):
        return error_response(error.code, error.type, message_of(error), error.headers)
    if isinstance(error, InvalidModel):
        return error_response(400, "BadRequestException", _model_message(error))
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
        may_have_changed: its thread runs, and may still commit.
        is_known: it has an idempotency key, so it can be sent again (`request/idempotency.py`).

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
    """Positions and messages of the errors, without the input, which may be large."""
    found = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in error.errors(include_input=False)]
    more = f", and {len(found) - 5} more" if len(found) > 5 else ""
    return "; ".join(found[:5]) + more


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
    """The message as Iceberg's Java library words it, if it has that message."""
    if is_commit and _CREATION.match(message):
        return "Requirement failed: table already exists"
    for pattern, replacement in _WORDINGS:
        message, n_replaced = pattern.subn(replacement, message)
        if n_replaced:
            break
    return message
