"""Secrets are taken out of messages, wherever they come from: libraries put addresses with signatures into theirs."""

from __future__ import annotations

import logging
import re

_NAMES = (
    r"authorization|password|secret[\w-]*|[\w-]*token|signature|x-amz-[\w-]+|[\w-]*access[_-]?key[\w-]*"
    r"|account[_-]?key|sig|credential"
)
_VALUE = r"[^\s'\"&,;)]+"
_SECRETS = re.compile(
    rf"(\b(?:{_NAMES})['\"]?\s*[=:]\s*['\"]?)(?:(?:bearer|basic)\s+)?{_VALUE}|(\bbearer\s+){_VALUE}", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """The text with `***` for what looks like a secret."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}***", text)


class Redaction(logging.Filter):
    """Takes secrets out of what is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = without_secrets(record.getMessage())
        record.args = ()
        return True
