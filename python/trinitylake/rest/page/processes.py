"""Asking a process that reads rows (`query_program.py`)."""

from __future__ import annotations

import json
import logging
import os
import pickle
from typing import Any

from starlette.responses import Response

from trinitylake.rest.errors import RestError
from trinitylake.rest.page.answers import answer_of_bytes
from trinitylake.rest.page.query_program import Request
from trinitylake.rest.request.call import Call

logger = logging.getLogger("trinitylake.rest")

#: Less than a call to others may take (`outbound.py`), which such a request may be.
SECONDS = 12.0


def have_processes(call: Call) -> bool:
    """Whether other processes reach the lakehouse."""
    return os.name == "posix" and not call.service.lake.uri.startswith("memory:")


def answered(call: Call, request: Request) -> Response:
    """The answer to a request, as it is sent. Raises `RestError` as `QueryProcesses.run` does."""
    return answer_of_bytes(*_asked(call, request))


def found(call: Call, request: Request) -> dict[str, Any]:
    """The document that answers a request. Raises `RestError` as `QueryProcesses.run` does, and for its error."""
    body, code = _asked(call, request)
    document: dict[str, Any] = json.loads(body)
    if code != 200:
        error = document["error"]
        raise RestError(code, error["type"], error["message"])
    return document


def _asked(call: Call, request: Request) -> tuple[bytes, int]:
    run = call.service.queries.run
    told, _, body = run(pickle.dumps(request), call.principal.name, request.seconds, call.is_wanted).partition(b"\n")
    head = json.loads(told)
    if "problem" in head:
        logger.error("what was asked for could not be read: %s", head["problem"])
    return body, head["code"]
