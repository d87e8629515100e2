"""A remote storage that fails when a test says so."""

from collections.abc import Callable
from pathlib import Path

from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import RemoteError, RemoteFull, RemoteUnavailable


class UnreliableStorage(DirectoryStorage):
    """`fault` is raised by every call that writes; after the call where it is `lost_answers`. `full_at`: bytes that it
    takes in appends and puts. `calls` are those that have changed something."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fault: RemoteError | None = None
        self.lost_answers = 0
        self.full_at: int | None = None
        self.calls: list[tuple[str, str, int]] = []
        self.before_call: Callable[[str], None] = lambda path: None

    def append(self, path: str, offset: int, data: bytes) -> None:
        self._check(path, len(data))
        super().append(path, offset, data)
        self._answer("append", path, len(data))

    def put(self, path: str, file: Path, digest: str) -> None:
        size = file.stat().st_size
        self._check(path, size)
        super().put(path, file, digest)
        self._answer("put", path, size)

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        self._check(path, 0)
        super().copy(source, path, size, digest)
        self._answer("copy", path, size)

    def size(self, path: str) -> int | None:
        self._check(path, 0)
        return super().size(path)

    def remove(self, prefix: str) -> None:
        self._check(prefix, 0)
        super().remove(prefix)
        self._answer("remove", prefix, 0)

    def _check(self, path: str, count: int) -> None:
        self.before_call(path)
        if self.fault is not None:
            raise self.fault
        if self.full_at is not None and count > self.full_at:
            raise RemoteFull("no room")

    def _answer(self, call: str, path: str, count: int) -> None:
        self.calls.append((call, path, count))
        if self.full_at is not None:
            self.full_at -= count
        if self.lost_answers:
            self.lost_answers -= 1
            raise RemoteUnavailable("the answer was lost")
