"""Temporary credentials for the files of one table, from the store's own security token service (STS).

The server's own credentials are never given away: without a role to assume there are none to give. A session policy
limits the role to the files of the table. Nobody may delete files: older versions need them.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import OrderedDict
from typing import Any

from trinitylake.errors import InvalidArgument
from trinitylake.rest.files.s3_store import S3Store, Scope

logger = logging.getLogger("trinitylake.rest")

#: Given again as long as at least that part of their life is left.
_LIFE_LEFT = 0.5
_MAX_KEPT = 1000
#: What a policy would understand as a pattern.
_PATTERN = re.compile(r"[*?$]")
_ROLE = re.compile(r"arn:([^:]+):[^:]*:[^:]*:[^:]*:.+")
SECONDS_MIN, SECONDS_MAX = 900, 43200


class Vendor:
    """Asks for temporary credentials, and keeps them for whoever asks again. Safe to share between threads.

    Args:
        store: where the tables are; its credentials must be allowed to assume the role.
        role_arn: to assume.
        endpoint: of the security token service; by default that of the store, or AWS's.
        seconds: how long credentials work.

    Raises `InvalidArgument` for a role that is no ARN, and a time that the service does not know.
    """

    def __init__(self, store: S3Store, role_arn: str, endpoint: str, seconds: int) -> None:
        found = _ROLE.fullmatch(role_arn)
        if found is None:
            raise InvalidArgument(f"{role_arn!r} is not the ARN of a role")
        if not SECONDS_MIN <= seconds <= SECONDS_MAX:
            raise InvalidArgument(f"temporary credentials work for {SECONDS_MIN} to {SECONDS_MAX} seconds: {seconds}")
        # Other makers of stores have partitions of their own for roles, but not for buckets.
        self._partition = found[1] if found[1].startswith("aws") else "aws"
        self._role_arn = role_arn
        self._seconds = seconds
        self._client = store.client("sts", endpoint or store.endpoint)
        self._kept: OrderedDict[tuple[Scope, str], dict[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, scope: Scope, who: str) -> dict[str, str] | None:
        """What `credentials` would give without asking the service; None if it would ask."""
        with self._lock:
            kept = self._kept.get((scope, who))
        return kept if kept is not None and _millis_left(kept) > self._seconds * 1000 * _LIFE_LEFT else None

    def credentials(self, scope: Scope, who: str) -> dict[str, str] | None:
        """Properties for a client's file access; None for a table whose location cannot be written as a policy.

        Args:
            scope: what they open.
            who: gets them; the store's own log names them.

        Raises what botocore raises.
        """
        if _PATTERN.search(scope.bucket + scope.key):
            return None
        if (kept := self.kept(scope, who)) is not None:
            return kept
        answer = self._client.assume_role(
            RoleArn=self._role_arn,
            RoleSessionName=re.sub(r"[^\w+=,.@-]", "-", f"trinitylake-{who}", flags=re.ASCII)[:64],
            DurationSeconds=self._seconds,
            Policy=json.dumps(policy(scope, self._partition), separators=(",", ":")),
        )["Credentials"]
        made = {
            "s3.access-key-id": str(answer["AccessKeyId"]),
            "s3.secret-access-key": str(answer["SecretAccessKey"]),
            "s3.session-token": str(answer["SessionToken"]),
            "s3.session-token-expires-at-ms": str(int(answer["Expiration"].timestamp() * 1000)),
        }
        with self._lock:
            self._kept[scope, who] = made
            self._kept.move_to_end((scope, who))
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return made


def policy(scope: Scope, partition: str = "aws") -> dict[str, Any]:
    """The session policy for a scope: its objects, and listing them."""
    bucket = f"arn:{partition}:s3:::{scope.bucket}"
    actions = ["s3:GetObject"]
    if scope.writable:
        actions += ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": actions, "Resource": [f"{bucket}/{scope.key}/*"]},
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [bucket],
                "Condition": {"StringLike": {"s3:prefix": [f"{scope.key}/*"]}},
            },
        ],
    }


def _millis_left(credentials: dict[str, str]) -> float:
    return int(credentials["s3.session-token-expires-at-ms"]) - time.time() * 1000
