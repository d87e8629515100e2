"""Reopens the log file of this process when it was moved away.

`shardyard up` renames a log that has grown, while processes write to it. Nothing is lost: what they write goes to the
renamed file until they look, before the first line a second later, and to the new one from then on.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Names the file that standard error is, for processes that `shardyard up` starts.
LOG_VARIABLE: Final = "SHARDYARD_LOG_FILE"
LOOK_SECONDS: Final = 1.0
_STDOUT, _STDERR = 1, 2


class LogFollower:
    """Keeps standard error, and standard output where it is the same file, at the file that has the log's name. A
    process that has pointed standard error elsewhere, such as a rank, is left alone for good."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = os.fstat(_STDERR)
        self._look_at = 0.0
        self._is_ours = True

    def follow(self) -> None:
        """Look whether the file was moved, at most once a second. What cannot be opened is not followed."""
        now = time.monotonic()
        if not self._is_ours or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        with suppress(OSError):
            current = os.fstat(_STDERR)
            if not os.path.samestat(current, self._known):
                self._is_ours = False
            elif not self._is_current():
                self._reopen(current)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), self._known)
        except FileNotFoundError:
            return False

    def _reopen(self, old: os.stat_result) -> None:
        opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.path.samestat(os.fstat(_STDOUT), old):
                os.dup2(opened, _STDOUT)
            os.dup2(opened, _STDERR)
            self._known = os.fstat(_STDERR)
        finally:
            os.close(opened)


def follow_log() -> LogFollower | None:
    """A follower of the log that `shardyard up` gave this process; None where standard error is something else."""
    name = os.environ.get(LOG_VARIABLE, "")
    try:
        is_log = bool(name) and os.path.samestat(os.stat(name), os.fstat(_STDERR))
    except OSError:
        return None
    return LogFollower(Path(name)) if is_log else None
