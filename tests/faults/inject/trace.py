"""System calls that fail: strace attaches to a process and injects an error, a signal or a delay."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ATTACH_SECONDS = 60.0
DETACH_SECONDS = 3.0


@contextmanager
def failing_calls(pid: int, calls: str, fault: str, *, path: Path | None = None, log: Path) -> Iterator[None]:
    """While this lasts, `calls` ("fsync,fdatasync") of a process and what it forks meet `fault` ("error=EIO",
    "signal=SIGKILL", "delay_enter=100000", with ":when=3" or without), only on `path` where one is given. `log` gets
    strace's words."""
    only = ["-P", str(path)] if path is not None else []
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:{fault}"]
    tracer = subprocess.Popen(["strace", "-f", "-o", str(log), *only, *inject, "-p", str(pid)], stderr=subprocess.PIPE)
    try:
        _await_tracer(pid, tracer)
        yield
    finally:
        tracer.terminate()  # it detaches
        try:
            tracer.communicate(timeout=DETACH_SECONDS)
        except subprocess.TimeoutExpired:  # it waits for ever now and then where the process has ended meanwhile
            tracer.kill()
            tracer.communicate()


def _await_tracer(pid: int, tracer: "subprocess.Popen[bytes]") -> None:
    """Wait until every thread of `pid` is traced."""
    deadline = time.monotonic() + ATTACH_SECONDS
    while not all(_tracer_of(task) == tracer.pid for task in Path(f"/proc/{pid}/task").iterdir()):
        if tracer.poll() is not None or time.monotonic() > deadline:
            tracer.kill()
            raise RuntimeError(f"strace does not attach to {pid}: {tracer.communicate()[1].decode()}")
        time.sleep(0.02)


def _tracer_of(task: Path) -> int:
    """0 for none, and for a thread that has just ended."""
    try:
        lines = (task / "status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("TracerPid:"))
