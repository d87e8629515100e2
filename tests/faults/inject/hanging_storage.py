"""A storage that stops answering on one host, as a network file system whose server is gone."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.workers.service import eventually

ROOT = Path(__file__).resolve().parents[3]
MODULE = [sys.executable, "-m", "tests.faults.inject.passthrough"]


class HangingStorage:
    """A directory as one host sees it: through a file system of its own, whose server can be stopped. Only what runs in
    the mount namespace of that server sees it so."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "--propagation", "private", *MODULE, str(directory), str(directory)]
        self._server = subprocess.Popen(command, cwd=ROOT)
        mounts = Path(f"/proc/{self._server.pid}/mounts")
        eventually(lambda: f"{directory} fuse" in mounts.read_text(), f"{directory} is mounted")

    @property
    def prefix(self) -> list[str]:
        """What a command line begins with that runs on this host."""
        return ["nsenter", f"--mount=/proc/{self._server.pid}/ns/mnt"]

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It does not answer while this lasts."""
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it. Whoever waits for it gets an error."""
        with suppress(ProcessLookupError):
            self._server.kill()
        self._server.wait(10)
