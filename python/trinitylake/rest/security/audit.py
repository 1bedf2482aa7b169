"""The audit log: changes by principal, and refused changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

audit_log = logging.getLogger("trinitylake.rest.audit")


def audit(
    who: str, what: str, names: Iterable[str], code: int, version: int | None, transaction: str | None, request_id: str
) -> None:
    """Log a request that changes something or returns rows. A commit stores `who` and `request_id` too."""
    if not audit_log.isEnabledFor(logging.INFO):
        return
    fields = {
        "who": who,
        "names": list(names),
        "code": code,
        "version": version,
        "transaction": transaction,
        "request_id": request_id,
    }
    audit_log.info(what, extra={"fields": fields})
