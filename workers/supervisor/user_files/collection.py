"""Keeps what a script has left in its working directory: at the end of its attempt, however that ended.

    1. `selection` finds the files that are new or changed, and chooses what fits the limit, the newest first
    2. `file_mover` moves them to `<attempt>/files/` in the storage
    3. files of earlier attempts are removed where the job has more than its limit now
    4. `<attempt>/files.json` says how much was kept, and what was not and why

The processes of the attempt must be dead. Nothing here ends an attempt in another way than it would have: what cannot
be kept is counted, and errors are logged.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import msgspec
import structlog

from jobs.files import paths, user_files
from jobs.files.user_files import UserFilesRecord
from jobs.store import AttemptId
from jobs.support import fs
from jobs.support.directory_cursor import walk_directories
from workers.runtime.launch import AttemptDirectory
from workers.supervisor.user_files.baseline import Baseline, read_baseline
from workers.supervisor.user_files.file_mover import FileMover, MoveRefused, TimeIsUp
from workers.supervisor.user_files.left_out import FoundFile, LeftOutTally, Reason, replaced_files
from workers.supervisor.user_files.selection import FileFinder, choose_files

log = structlog.get_logger(__name__)

#: How long the end of an attempt may wait for copies, and how long it may where the service stops.
COPY_SECONDS: Final = 60.0
HURRIED_SECONDS: Final = 5.0

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DISK_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO))


def keep_files(
    directory: AttemptDirectory, storage: Path, attempt: AttemptId, is_time_up: Callable[[], bool]
) -> UserFilesRecord | None:
    """Keep the files of an attempt. None where it keeps none, or that was done before."""
    target = paths.dir_of_attempt(storage, attempt).absolute()
    try:
        if paths.user_files_record(target).exists():
            return None
        baseline = read_baseline(directory)
        if baseline is None:
            return None
        record = _keep_files(baseline, directory.work, target, attempt, is_time_up)
    except (OSError, msgspec.MsgspecError) as error:
        log.error("files_not_kept", attempt=str(attempt), error=str(error))
        return None
    if record.files or record.left_out:
        try:
            user_files.write_record(target, record)
        except OSError as error:
            log.error("record_of_files_not_written", attempt=str(attempt), error=str(error))
    return record


def keep_files_of_dead_supervisor(directory: AttemptDirectory, storage: Path, attempt: AttemptId) -> None:
    """The same for an attempt whose supervisor died before it could."""
    deadline = monotonic() + HURRIED_SECONDS
    keep_files(directory, storage, attempt, lambda: monotonic() > deadline)


def _keep_files(
    baseline: Baseline, work: Path, attempt_dir: Path, attempt: AttemptId, is_time_up: Callable[[], bool]
) -> UserFilesRecord:
    target, left_out = paths.user_files_dir(attempt_dir), LeftOutTally()
    source = os.open(work, _DIRECTORY)
    try:
        before = _measure_directory(target)  # what a supervisor that was killed has moved already
        found = FileFinder(baseline, left_out, is_time_up).find_files(source)
        later = _other_attempts(attempt_dir, lambda number: number > attempt.number)
        allowance = baseline.limit - sum(record.bytes for record in later.values())
        chosen = choose_files(found, allowance - before.bytes, left_out)
        if chosen:
            target.mkdir(mode=0o700, exist_ok=True)  # no parents: the storage may not be mounted any more
        mover = FileMover(source, target, paths.user_file_draft(attempt_dir), baseline.uid, is_time_up)
        kept = _move_files(mover, chosen, left_out)
    finally:
        os.close(source)
    size = before.bytes + sum(file.bytes for file in kept)
    _remove_replaced(attempt_dir, attempt, allowance - size)
    return UserFilesRecord(files=before.files + len(kept), bytes=size, left_out=left_out.summarize(baseline.limit))


class _Measured(NamedTuple):
    files: int
    bytes: int


def _measure_directory(directory: Path) -> _Measured:
    if not directory.exists():
        return _Measured(0, 0)
    sizes = []
    for here, names in walk_directories(directory):
        found = (os.stat(name, dir_fd=here, follow_symlinks=False) for name in names)
        sizes += [status.st_size for status in found if not stat.S_ISDIR(status.st_mode)]
    return _Measured(len(sizes), sum(sizes))


def _move_files(mover: FileMover, chosen: list[FoundFile], left_out: LeftOutTally) -> list[FoundFile]:
    """Move the files, and count those that cannot be moved. Returns the moved ones."""
    kept: list[FoundFile] = []
    for file in chosen:
        reason = _move_file(mover, file)
        if reason is None:
            kept.append(file)
        else:
            left_out.add(reason, file)
    return kept


def _move_file(mover: FileMover, file: FoundFile) -> Reason | None:
    """Move one file; the reason why it cannot be moved, if so."""
    try:
        mover.move(file)
    except TimeIsUp:
        return "time"
    except MoveRefused:
        return "unreadable"
    except OSError as error:
        return "disk" if error.errno in _DISK_ERRNOS else "unreadable"
    return None


def _remove_replaced(attempt_dir: Path, attempt: AttemptId, room: int) -> None:
    """Remove the files of earlier attempts, the oldest first, until the rest of them has `room` bytes at most."""
    earlier = _other_attempts(attempt_dir, lambda number: number < attempt.number)
    total = sum(record.bytes for record in earlier.values())
    for number in sorted(earlier):
        if total <= room:
            return
        record, directory = earlier[number], attempt_dir.with_name(str(number))
        removed = replaced_files(record.files, record.bytes, attempt.number)
        try:
            fs.remove_tree(paths.user_files_dir(directory))
            replaced = UserFilesRecord(files=0, bytes=0, left_out=[*record.left_out, removed])
            user_files.write_record(directory, replaced)
        except OSError as error:
            log.warning("not_replaced", directory=str(directory), error=str(error))
            continue
        total -= record.bytes


def _other_attempts(attempt_dir: Path, is_asked: Callable[[int], bool]) -> dict[int, UserFilesRecord]:
    """Records of other attempts of the job that have kept files, by number."""
    numbers = [int(name) for name in os.listdir(attempt_dir.parent) if name.isdecimal()]
    records = {
        number: user_files.read_record(attempt_dir.with_name(str(number))) for number in numbers if is_asked(number)
    }
    return {number: record for number, record in records.items() if record is not None and record.bytes}
