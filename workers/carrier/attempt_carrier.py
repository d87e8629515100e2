"""Copies the files of one attempt to the remote, as they grow and as they are finished.

    logs, metrics                        grow by frames; each piece is appended where the remote's file ends
    report, hardware, files.json         are renamed into place, and put whole
    artifacts, files, profiles           are put whole, while the attempt runs when nobody has changed them for a while

A large file with the contents of one that was carried before is copied at the remote: what a script has saved as a
checkpoint, it often leaves in its working directory too.

A call may be cut anywhere, and repeated by another process: the journal says what was carried, or less.
"""

import math
import os
import time
from collections.abc import Collection
from pathlib import Path

import structlog

from jobs.files import paths
from jobs.files.frame_file import FrameReader
from jobs.storage.remote import (
    CHUNK_BYTES,
    OffsetMismatch,
    RemoteError,
    RemoteStorage,
    RemoteUnavailable,
    digest_file,
)
from jobs.store import AttemptId
from jobs.support import failpoints
from workers.carrier.journal import CarriedFile, CarryJournal
from workers.carrier.local_files import WholeFile, draft_files, growing_files, remove_old_drafts, whole_files

log = structlog.get_logger(__name__)

#: A finished file that came in pieces is put whole, where that costs little: some remotes keep each piece for itself.
MAX_MENDED_BYTES = 256 * 1024 * 1024
#: Where appending is dear, a file that grows is left alone for this share of its age, within the remote's bound, unless
#: it has grown by so many bytes: by less than the telemetry Redis keeps, so that readers find all in one of the two.
PAUSE_SHARE, PIECE_BYTES = 20.0, 1024 * 1024
#: A file of so many bytes is copied at the remote, where that has it under another name; a smaller one is soon put.
COPIED_BYTES = 4 * 1024 * 1024


class AttemptCarrier:
    """For one thread at a time, of the attempt's supervisor or, when that is dead, of its node's agent."""

    def __init__(self, remote: RemoteStorage, root: Path, attempt: AttemptId, journal: CarryJournal) -> None:
        self._remote = remote
        self._root = root
        self._attempt = paths.dir_of_attempt(root, attempt)
        self._journal = journal
        self._frame_ends: dict[str, int] = {}  # how far each file that grows is whole
        self._seen_at: dict[str, tuple[float, float]] = {}  # monotonic times: first of all, and at the last piece
        self._error: RemoteError | None = None
        self.bytes_carried = 0
        self.refused: dict[str, str] = {}  # by path: what the remote has said of it, which will not change by itself

    def carry_growing(self) -> int:
        """Carry what logs and metrics have grown by, and what the leader on another node waits for. Returns the bytes
        that are left.

        Raises:
            RemoteError: the remote refuses, or does not answer.
            OSError: the disk does not answer.
        """
        left = sum(self._carry_pieces(file, finished=False) for file in growing_files(self._attempt))
        for found in draft_files(self._attempt, time.time()):
            left += self._carry_whole(self._remote_path(found.path), found, finished=False)
        self._raise_error()
        return left

    def carry_once(self, *, finished: bool = False) -> int:
        """Carry everything that can be carried now. `finished`: nobody writes to it any more. Returns the bytes that
        are left, among them those of files that were changed lately. Raises as `carry_growing` does, when everything
        was tried."""
        left = sum(self._carry_pieces(file, finished) for file in growing_files(self._attempt))
        remove_old_drafts(self._attempt)
        seen: set[str] = set()
        for found in whole_files(self._attempt, time.time()):
            path = self._remote_path(found.path)
            seen.add(path)
            left += self._carry_whole(path, found, finished)
        for path in self._journal.whole_files(self._remote_path(self._attempt)):
            if path not in seen:
                self._remove_carried(path)
        self._journal.save()
        self._raise_error()
        return left

    def leave_out(self, paths: Collection[str]) -> None:
        """Offer files that were refused no more, neither now nor in another process. Raises OSError."""
        for path in paths:
            self._journal.note(path, CarriedFile(is_left_out=True))
        self._journal.save()

    def count_left(self) -> int:
        """Bytes that are to be carried, without asking the remote. Raises OSError."""
        left = 0
        for file in growing_files(self._attempt):
            carried = self._journal.find(self._remote_path(file)) or CarriedFile()
            left += max(0, file.stat().st_size - carried.bytes) if not carried.is_left_out else 0
        for found in whole_files(self._attempt, time.time()):
            carried = self._journal.find(self._remote_path(found.path)) or CarriedFile()
            left += found.stamp.bytes if carried.stamp != found.stamp and not carried.is_left_out else 0
        return left

    # -- files that grow -------------------------------------------------------------------------------

    def _carry_pieces(self, file: Path, finished: bool) -> int:
        path = self._remote_path(file)
        end = self._whole_end(path, file)
        carried = self._journal.find(path)
        if carried is not None and carried.is_left_out:
            return 0
        try:
            if carried is None:  # or the journal was torn
                carried = CarriedFile(min(end, self._remote.size(path) or 0))
            while carried.bytes < end and (finished or self._is_due(path, end - carried.bytes)):
                data = _read(file, carried.bytes, min(CHUNK_BYTES, end - carried.bytes))
                carried = self._append(path, carried, data)
            if finished and carried.appends > 1 and end <= MAX_MENDED_BYTES:
                self._mend(path, file, carried)
        except OffsetMismatch as error:
            self._begin_again(path, carried, error)
        except RemoteError as error:
            self._note_error(path, error)
        return max(0, end - carried.bytes) if carried is not None else end

    def _is_due(self, path: str, grown: int) -> bool:
        now = time.monotonic()
        first, last = self._seen_at.setdefault(path, (now, -math.inf))
        pause = min(self._remote.append_seconds, (now - first) / PAUSE_SHARE)
        return grown >= PIECE_BYTES or now - last >= pause

    def _append(self, path: str, carried: CarriedFile, data: bytes) -> CarriedFile:
        self._remote.append(path, carried.bytes, data)
        failpoints.reach("carry.appended")
        self.bytes_carried += len(data)
        self._seen_at[path] = (self._seen_at.get(path, (time.monotonic(), 0.0))[0], time.monotonic())
        carried = CarriedFile(carried.bytes + len(data), None, carried.appends + 1)
        self._journal.note(path, carried)
        return carried

    def _mend(self, path: str, file: Path, carried: CarriedFile) -> None:
        """Replace the pieces of a finished file by the file."""
        self._remote.put(path, file, digest_file(file))
        failpoints.reach("carry.put")
        self._journal.note(path, CarriedFile(carried.bytes, None, 1))

    def _begin_again(self, path: str, carried: CarriedFile | None, error: OffsetMismatch) -> None:
        """The remote has another beginning of the file, or less of it than it had: it gets all that is whole here."""
        log.warning("remote_file_differs", path=path, at=carried.bytes if carried else 0, remote=error.size)
        try:
            self._remote.remove(path)
        except RemoteError as refused:
            self._note_error(path, refused)
        else:
            self._journal.note(path, CarriedFile())

    def _whole_end(self, path: str, file: Path) -> int:
        """Where the last whole frame ends: behind it there may be one that is being written, or taken back."""
        end = self._frame_ends.get(path, 0)
        with FrameReader(file) as reader:
            for frame in reader.forward(reader.frame_at(end)):
                end = frame.end
        self._frame_ends[path] = end
        return end

    # -- whole files -----------------------------------------------------------------------------------

    def _carry_whole(self, path: str, found: WholeFile, finished: bool) -> int:
        carried = self._journal.find(path)
        if carried is not None and (carried.stamp == found.stamp or carried.is_left_out):
            return 0
        if not (finished or found.is_settled):
            return found.stamp.bytes
        try:
            digest = digest_file(found.by_descriptor)
            if not self._copy(path, found.stamp.bytes, digest):
                self._remote.put(path, found.by_descriptor, digest)
            failpoints.reach("carry.put")
        except RemoteError as error:
            self._note_error(path, error)
            return found.stamp.bytes
        except ValueError as error:  # a name that no remote takes: it can only be left out
            log.warning("file_not_carried", path=path[:200], why=str(error))
            return 0
        self.bytes_carried += found.stamp.bytes
        if not found.has_changed():
            known = digest if found.stamp.bytes >= COPIED_BYTES else ""
            self._journal.note(path, CarriedFile(found.stamp.bytes, found.stamp, digest=known))
        return 0

    def _copy(self, path: str, size: int, digest: str) -> bool:
        """Copy a file at the remote. False: it has to be put."""
        source = self._journal.find_same(digest) if size >= COPIED_BYTES else None
        if source is None or source == path:
            return False
        try:
            self._remote.copy(source, path, size, digest)
        except (RemoteError, ValueError) as error:
            log.info("file_not_copied", source=source, path=path, why=str(error))
            return False
        return True

    def _remove_carried(self, path: str) -> None:
        """The program has removed, or renamed, what was carried before."""
        try:
            self._remote.remove(path)
        except RemoteError as error:
            self._note_error(path, error)
        else:
            self._journal.drop(path)

    def _remote_path(self, file: Path) -> str:
        return str(file.relative_to(self._root))

    def _note_error(self, path: str, error: RemoteError) -> None:
        """Go on with other files, unless the remote is away: each of its calls may take a minute."""
        if isinstance(error, RemoteUnavailable):
            self._journal.save()
            raise error
        self.refused[path] = str(error)
        self._error = self._error or error

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _read(file: Path, offset: int, count: int) -> bytes:
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.pread(fd, count, offset)
    finally:
        os.close(fd)
