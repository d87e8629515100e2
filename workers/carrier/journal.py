"""Which of an attempt's files are at the remote: a file in the node's state directory for each attempt.

It is there from before the attempt's first file until the last one was carried and removed here, so the journals of a
node name everything that it has still to carry. What is written in it may be behind the remote, never ahead: to carry
the same bytes twice changes nothing there.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from jobs.store import AttemptId
from jobs.support.fs import replace_file, sync_directory

log = structlog.get_logger(__name__)

_DIRECTORY, _SUFFIX, _BACKLOG, _LOCK = "carry", ".journal", ".left", ".lock"


class FileStamp(msgspec.Struct, frozen=True, array_like=True):
    """What a whole file was when it was carried."""

    bytes: int
    modified_ns: int
    inode: int


class CarriedFile(msgspec.Struct, frozen=True, array_like=True):
    """`bytes` of a file that grows, or the `stamp` of one that was carried whole, are at the remote. `appends`: in how
    many pieces it came there. `digest`: the SHA-256 of a whole file that is large; "" for others. `is_left_out`: the
    remote refuses it, and it is offered no more. The layout grows at the end."""

    bytes: int = 0
    stamp: FileStamp | None = None
    appends: int = 0
    digest: str = ""
    is_left_out: bool = False


_files = msgspec.msgpack.Decoder(dict[bytes, CarriedFile])


class CarryJournal:
    """For one thread. Paths are those at the remote."""

    def __init__(self, file: Path) -> None:
        """Read the journal, or begin one where there is none, or a torn one.

        Raises:
            OSError: the disk refuses.
        """
        self._file = file
        self._files = _read_files(file)
        self._changed = not file.exists()

    @classmethod
    def of(cls, state_dir: Path, attempt: AttemptId) -> "CarryJournal":
        """That of an attempt, made and synced if need be. Raises OSError."""
        file = journal_file(state_dir, attempt)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        journal = cls(file)
        journal.save()
        return journal

    def find(self, path: str) -> CarriedFile | None:
        return self._files.get(os.fsencode(path))

    def note(self, path: str, carried: CarriedFile) -> None:
        self._files[os.fsencode(path)] = carried
        self._changed = True

    def find_same(self, digest: str) -> str | None:
        """A path that has a large file with this digest, as far as is known."""
        return next((os.fsdecode(path) for path, one in self._files.items() if one.digest == digest), None)

    def drop(self, path: str) -> None:
        self._changed |= self._files.pop(os.fsencode(path), None) is not None

    def whole_files(self, prefix: str) -> list[str]:
        """The paths below a directory of what was carried whole."""
        start = os.fsencode(f"{prefix}/")
        return [os.fsdecode(path) for path, one in self._files.items() if one.stamp and path.startswith(start)]

    def save(self) -> None:
        """Bring the journal to the disk. Raises OSError."""
        if not self._changed:
            return
        draft = self._file.with_suffix(".draft")
        with draft.open("wb") as file:
            file.write(msgspec.msgpack.encode(self._files))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._file)
        sync_directory(self._file.parent)
        self._changed = False

    def write_backlog(self, left: int) -> None:
        """Say how many bytes are still to be carried. Not synced: it is said again every few seconds."""
        replace_file(self._file.with_suffix(_BACKLOG), str(left).encode())

    def remove(self) -> None:
        """All of the attempt was carried."""
        for suffix in (_BACKLOG, _LOCK):
            self._file.with_suffix(suffix).unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)


def journal_file(state_dir: Path, attempt: AttemptId) -> Path:
    return state_dir / _DIRECTORY / f"{attempt.tenant}.{attempt.job}.{attempt.number}{_SUFFIX}"


def is_carried(state_dir: Path, attempt: AttemptId) -> bool:
    """Whether an attempt has files here that are still to be carried, or removed."""
    return journal_file(state_dir, attempt).exists()


def hold_journal(state_dir: Path, attempt: AttemptId) -> None:
    """Have a journal for this process alone, until it is dead: that of the attempt's supervisor.

    Raises:
        OSError: the disk refuses.
    """
    file = journal_file(state_dir, attempt).with_suffix(_LOCK)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(state_dir: Path, attempt: AttemptId) -> bool:
    """Whether the supervisor that holds a journal lives."""
    try:
        lock = os.open(journal_file(state_dir, attempt).with_suffix(_LOCK), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def carried_attempts(state_dir: Path) -> Iterator[AttemptId]:
    """The attempts that have a journal on this node, the oldest first."""
    found = (state_dir / _DIRECTORY).glob(f"*.*.*{_SUFFIX}")
    for name in sorted(file.name.removesuffix(_SUFFIX) for file in found):
        tenant, job, number = name.rsplit(".", 2)
        yield AttemptId(tenant, job, int(number))


def read_backlog(state_dir: Path) -> int:
    """Bytes that all attempts of the node have still to carry, as far as they have said."""
    total = 0
    for file in (state_dir / _DIRECTORY).glob(f"*{_BACKLOG}"):
        try:
            total += int(file.read_text())
        except (FileNotFoundError, ValueError):  # it was just carried
            continue
    return total


def _read_files(file: Path) -> dict[bytes, CarriedFile]:
    try:
        return _files.decode(file.read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        log.warning("journal_torn", journal=str(file), error=str(error))
        return {}
