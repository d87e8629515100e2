"""A node's local root with one attempt, and a remote."""

import os
import time
from pathlib import Path

from jobs.files import paths
from jobs.files.frame_file import FrameDraft, FrameKind, FrameWriter
from jobs.store import AttemptId
from tests.support.unreliable_storage import UnreliableStorage
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.journal import CarryJournal

ATTEMPT = AttemptId("default", "0a", 1)
LOG = "jobs/default/0a/1/logs/device-0.log"


class Place:
    def __init__(self, directory: Path) -> None:
        self.root, self.away, self.state_dir = (directory / name for name in ("local", "remote", "state"))
        for made in (self.root, self.away, self.state_dir):
            made.mkdir()
        self.attempt = paths.attempt_dir(self.root, *(ATTEMPT.tenant, ATTEMPT.job, ATTEMPT.number))
        paths.logs_dir(self.attempt).mkdir(parents=True)
        self.remote = UnreliableStorage(self.away)
        self.log = FrameWriter(paths.log_file(self.attempt, 0))
        self._lines = 0

    def carrier(self) -> AttemptCarrier:
        """As a new process would make it."""
        return AttemptCarrier(self.remote, self.root, ATTEMPT, CarryJournal.of(self.state_dir, ATTEMPT))

    def print_lines(self, count: int = 1, size: int = 100) -> None:
        for _ in range(count):
            self._lines += 1
            self.log.append(FrameDraft(FrameKind.DATA, self._lines, self._lines, -1, -1, os.urandom(size)))

    def write(self, name: str, body: bytes, *, age: float = 60.0) -> Path:
        file = self.attempt / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        os.utime(file, (time.time() - age,) * 2)
        return file

    def differences(self) -> list[str]:
        """Files of the attempt that are not the same on both sides."""
        here, there = (_contents(root) for root in (self.root, self.away))
        return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))

    def appended(self) -> int:
        return sum(count for call, path, count in self.remote.calls if (call, path) == ("append", LOG))


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
