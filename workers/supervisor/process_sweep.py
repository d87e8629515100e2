"""Kills the processes of an attempt, and proves that all are dead.

In a box there is one proof: its first process is dead, and the kernel lets that die last. Without one, four marks find
them, because each of them misses some:

- the cgroup, where one could be created: misses nothing, but needs rights that many hosts do not give;
- the session: misses a process that called setsid;
- the inherited lock file: held by every forked descendant, lost by one that execs and closes its files;
- the environment mark: shows in exec'd descendants only (a forked process keeps the old /proc/PID/environ).

Where the attempt has an account that no other attempt has, that is a fifth one, and misses nothing.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.store import AttemptId
from workers.runtime.launch import AttemptDirectory, attempt_variable
from workers.runtime.process_status import read_start_time, read_stat_fields
from workers.sandbox import cgroup
from workers.sandbox.box.accounts import processes_of_account
from workers.sandbox.leavings import remove_leavings

PAUSE_SECONDS = 0.02


def is_supervisor_dead(directory: AttemptDirectory) -> bool:
    """Whether no process holds the supervisor's lock. One that was never started counts as dead."""
    return _is_unlocked(directory.supervisor_lock, fcntl.lockf)


def sweep_attempt(directory: AttemptDirectory, attempt: AttemptId, deadline_seconds: float = 5.0) -> dict[int, str]:
    """Kill the processes of an attempt until none is left.

    Returns:
        Those that would not die by the deadline: process id -> command. Empty is the proof of death.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        found = set(_find_members(directory, attempt)) - {os.getpid()}
        for pid in found:
            _kill_and_reap(pid)
        if not found and _is_unlocked(directory.ranks_lock, fcntl.flock):
            cgroup.remove_cgroup(directory.cgroup)
            _clear_account(directory)
            return {}
        if not found:
            found = set(_find_lock_holders(directory)) - {os.getpid()}
            for pid in found:
                _kill_and_reap(pid)
        if time.monotonic() > deadline:
            return {pid: _command_line(pid) for pid in found} or {0: "an unseen process holds the attempt's lock"}
        time.sleep(PAUSE_SECONDS)


def describe_survivors(survivors: dict[int, str]) -> str:
    """Who would not die, in words."""
    return "; ".join(f"process {pid} ({command})" for pid, command in survivors.items())


def _find_members(directory: AttemptDirectory, attempt: AttemptId) -> Iterator[int]:
    """Processes that carry the account, cgroup, session or environment mark. Zombies are dead.

    A host may have thousands of processes, so the most expensive check is last: the environment is read only for those
    that are not older than the attempt.
    """
    yield from _find_boxed(directory)
    yield from _find_of_account(directory)
    yield from cgroup.cgroup_members(directory.cgroup)
    session, since = _read_session(directory)
    mark = "=".join(attempt_variable(attempt)).encode()
    for pid in _list_pids():
        sid = _session_id_of(pid)
        if not sid:
            continue
        fields = read_stat_fields(pid)
        if not fields or fields[0] in (b"Z", b"X") or (sid != session and int(fields[19]) < since):
            continue
        if sid == session or mark in _read_environment(pid):
            yield pid


def _find_boxed(directory: AttemptDirectory) -> Iterator[int]:
    """The first process of the box, unless another one has its number now."""
    try:
        pid, started, _ = (int(part) for part in directory.box.read_text().split())
    except (FileNotFoundError, ValueError):
        return
    fields = read_stat_fields(pid)
    if fields and fields[0] not in (b"Z", b"X") and int(fields[19]) == started:
        yield pid


def _find_of_account(directory: AttemptDirectory) -> list[int]:
    """All processes of the account that is the attempt's own, unless another attempt has it by now: that says so before
    it has a process, so it is asked afterwards."""
    uid = _read_account(directory)
    found = [*processes_of_account(uid)] if uid > 0 else []
    return [] if found and _is_given_again(directory, uid) else found


def _read_account(directory: AttemptDirectory) -> int:
    """The uid that is the attempt's own, in its box or without one; -1: it has none."""
    for mark in (directory.box, directory.account):
        with contextlib.suppress(FileNotFoundError, IndexError, ValueError):
            return int(mark.read_text().split()[-1])
    return -1


def _is_given_again(directory: AttemptDirectory, uid: int) -> bool:
    others = (path for path in directory.directory.parent.glob("*") if path != directory.directory)
    return any(_read_account(AttemptDirectory(path)) == uid for path in others)


def _clear_account(directory: AttemptDirectory) -> None:
    """Remove what an account has left on the host that an attempt had without a box, before another one gets it."""
    if directory.account.exists():
        uid = _read_account(directory)
        if uid > 0 and not _is_given_again(directory, uid):
            remove_leavings(uid)
        directory.account.unlink(missing_ok=True)


def _read_session(directory: AttemptDirectory) -> tuple[int | None, int]:
    """The session id, unless another process has its number now, and when it began; 0: that is not known."""
    try:
        session, started = (int(part) for part in directory.session.read_text().split())
    except (FileNotFoundError, ValueError):
        return None, 0
    return (session if read_start_time(session) in (0, started) else None), started


def _session_id_of(pid: int) -> int:
    """0 for a kernel thread, for a process whose session is in another namespace, which is none of the attempt's, and
    for one that has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _find_lock_holders(directory: AttemptDirectory) -> Iterator[int]:
    """Processes that have the ranks' lock file open. Slow, so only used when nothing else is found."""
    for pid in _list_pids():
        with contextlib.suppress(OSError):
            if any(_is_open_on(fd, directory.ranks_lock) for fd in Path(f"/proc/{pid}/fd").iterdir()):
                yield pid


def _is_open_on(fd: Path, file: Path) -> bool:
    """Whether a descriptor in /proc is open on `file`, whatever path it was opened by."""
    try:
        return fd.samefile(file)
    except OSError:
        return False


def _is_unlocked(path: Path, lock: Callable[[int, int], object]) -> bool:
    """Whether no process holds a lock, of the kind that `lock` takes. A file that is not there has no lock."""
    try:
        handle = path.open("r+b")
    except FileNotFoundError:
        return True
    with handle:
        try:
            lock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _kill_and_reap(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # orphans of the ranks are the supervisor's children


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read_environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return "?"
