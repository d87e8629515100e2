"""Saves the end of an attempt that the control Redis has not taken, and reports it later.

The supervisor of an attempt may not wait for ever for a Redis that is away, or for a storage that the attempt's files
are carried to. It saves the end in a file of the attempt's
directory, where no rank's account can write. The node's agent, which finds the supervisor dead, reports it when Redis
is back, and the files are where they belong. Nothing of the attempt is lost then, however long that takes.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import structlog

from jobs import store
from jobs.model.device_history import AttemptMarks, DeviceMark
from jobs.model.state import StateReason
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from jobs.support.fs import sync_directory

log = structlog.get_logger(__name__)


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is on the node's disk, and not at the storage, where it would count."""

    step: int
    epoch: int
    sha256: str  # of its manifest


class PendingEnd(msgspec.Struct, frozen=True):
    """The arguments of `jobs.store:finish`. The layout grows at the end. `measured` is of the devices of the node that
    leads, and `measured_elsewhere`, by part, of those of the others."""

    claimant: str
    reason: StateReason
    message: str
    error: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    backoff_seconds: float = 0.0
    measured: dict[int, DeviceMark] = {}
    measured_elsewhere: dict[int, dict[int, DeviceMark]] = {}
    checkpoint: PendingCheckpoint | None = None


def divide_marks(marks: AttemptMarks) -> tuple[dict[int, DeviceMark], dict[int, dict[int, DeviceMark]]]:
    """What is known of the leader's devices, and of those of each other part."""
    parts = {part: dict(of_part) for part, of_part in marks.items()}
    return parts.pop(0, {}), parts


def save_pending_end(path: Path, end: PendingEnd) -> None:
    """Write it to the disk, synced, so that it survives this process, and a power cut.

    Raises:
        OSError: the disk refuses.
    """
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(end))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_directory(path.parent)


def read_pending_end(path: Path) -> PendingEnd | None:
    """The end that a supervisor has left; None where it has left none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=PendingEnd)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def report_pending_end(control: RedisStore, attempt: AttemptId, path: Path) -> None:
    """Report the end that a supervisor has left in `path`, if it has left one. It is dead, and so are its processes. An
    attempt that was reaped meanwhile keeps the end that it has.

    Raises:
        Unavailable: Redis is away still; the file is left for later.
    """
    try:
        end = msgspec.json.decode(path.read_bytes(), type=PendingEnd)
    except FileNotFoundError:
        return
    except msgspec.MsgspecError as error:
        log.error("untold_end_unreadable", attempt=str(attempt), error=str(error))
    else:
        call = store.finish(
            attempt,
            end.claimant,
            end.reason,
            end.message,
            error=end.error,
            result=end.result,
            backoff_seconds=end.backoff_seconds,
            measured={0: end.measured} | end.measured_elsewhere,
        )
        log.warning("told_for_its_supervisor", attempt=str(attempt), reason=end.reason, taken=control.run(call))
    path.unlink(missing_ok=True)
