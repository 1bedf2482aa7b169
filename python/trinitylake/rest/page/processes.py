"""Asking a process that reads rows (`query_program.py`)."""

from __future__ import annotations

import json
import logging
import os
import pickle

from starlette.responses import Response

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
    """The answer to a request. Raises `RestError` as `QueryProcesses.run` does."""
    who = call.principal.name
    told, _, body = call.service.queries.run(pickle.dumps(request), who, request.seconds, call.is_wanted).partition(
        b"\n"
    )
    head = json.loads(told)
    if "problem" in head:
        logger.error("rows could not be read: %s", head["problem"])
    return answer_of_bytes(body, head["code"])
