"""Temporary credentials for the files of one table, from the store's own security token service (STS).

The server's own credentials are never given to clients: vending needs a role to assume. A session policy restricts the
role to the files of the table, without the right to delete files, which older versions need.
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

#: Cached credentials are given again if at least this part of their lifetime is left.
_LIFE_LEFT = 0.5
_MAX_KEPT = 1000
#: Characters that a policy reads as patterns or variables.
_PATTERN = re.compile(r"[*?$]")
_ROLE = re.compile(r"arn:([^:]+):[^:]*:[^:]*:[^:]*:.+")
SECONDS_MIN, SECONDS_MAX = 900, 43200


class Vendor:
    """Requests temporary credentials, and caches them per principal and scope. Thread-safe.

    Args:
        store: the store of the tables; its credentials must be allowed to assume the role.
        role_arn: the role to assume.
        endpoint: of the security token service; by default that of the store, or of AWS.
        seconds: lifetime of the credentials.

    Raises `InvalidArgument` for an invalid ARN or lifetime.
    """

    def __init__(self, store: S3Store, role_arn: str, endpoint: str, seconds: int) -> None:
        found = _ROLE.fullmatch(role_arn)
        if found is None:
            raise InvalidArgument(f"{role_arn!r} is not the ARN of a role")
        if not SECONDS_MIN <= seconds <= SECONDS_MAX:
            raise InvalidArgument(f"temporary credentials last {SECONDS_MIN} to {SECONDS_MAX} seconds, not {seconds}")
        # Other stores have their own partitions for roles, but not for buckets.
        self._partition = found[1] if found[1].startswith("aws") else "aws"
        self._role_arn = role_arn
        self._seconds = seconds
        self._client = store.client("sts", endpoint or store.endpoint)
        self._kept: OrderedDict[tuple[Scope, str], dict[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, scope: Scope, principal: str) -> dict[str, str] | None:
        """Cached credentials; None if `credentials` would call the service."""
        with self._lock:
            kept = self._kept.get((scope, principal))
        if kept is None:
            return None
        seconds_left = int(kept["s3.session-token-expires-at-ms"]) / 1000 - time.time()
        return kept if seconds_left > self._seconds * _LIFE_LEFT else None

    def credentials(self, scope: Scope, principal: str) -> dict[str, str] | None:
        """Properties for a client's file access; None if a policy would interpret the table's location as a pattern.

        Args:
            scope: the files that the credentials give access to.
            principal: name of the principal, which also appears in the log of the store.

        Raises the errors of botocore.
        """
        if _PATTERN.search(scope.bucket + scope.key):
            return None
        if (kept := self.kept(scope, principal)) is not None:
            return kept
        answer = self._client.assume_role(
            RoleArn=self._role_arn,
            RoleSessionName=re.sub(r"[^\w+=,.@-]", "-", f"trinitylake-{principal}", flags=re.ASCII)[:64],
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
            self._kept[scope, principal] = made
            self._kept.move_to_end((scope, principal))
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return made


def policy(scope: Scope, partition: str = "aws") -> dict[str, Any]:
    """The session policy of a scope: access to its objects, and listing them."""
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
