"""The exit code of the process for each kind of error, which scripts rely on."""

from __future__ import annotations

from trinitylake.errors import (
    CommitConflict,
    CorruptFile,
    InvalidArgument,
    InvalidLocation,
    InvalidName,
    NotALakehouse,
    ObjectNotFound,
    TrinityLakeError,
    VersionExpired,
    VersionNotFound,
)

FAILED = 1
USAGE = 2
#: For damage that was looked for and found, as for a damaged file that something else met.
CORRUPT = 5
#: By Ctrl-C, as shells have it.
INTERRUPTED = 130


def exit_code(error: TrinityLakeError) -> int:
    """The process exit code for an error."""
    match error:
        case InvalidArgument() | InvalidName() | InvalidLocation():
            return USAGE
        case CommitConflict():
            return 3
        case ObjectNotFound() | VersionNotFound() | VersionExpired() | NotALakehouse():
            return 4
        case CorruptFile():
            return CORRUPT
        case _:
            return FAILED
