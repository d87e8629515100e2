"""An account for each attempt, out of a range that belongs to nobody, as systemd's DynamicUser has one.

An account is taken by a lock, which the supervisor holds for as long as it lives. A file that was in use when its
holder died says so, and its processes are killed before the account is given out again.
"""

import contextlib
import fcntl
import os
import pwd
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.runtime.launch import RankAccount

#: Ranges that no distribution uses; the second one is for containers that have 65,536 accounts.
RANGES = ((0x70000000, 4096), (40_000, 4096))
#: The accounts of a host are locked here, whichever node or service takes them.
LOCKS = Path("/run/shardyard/accounts")
SWEEP_SECONDS = 5.0
_IN_USE = b"in use"


@dataclass(frozen=True, slots=True)
class TakenAccount:
    """The account of one attempt; `lock` is the descriptor that keeps others from it."""

    account: RankAccount
    lock: int

    def give_back(self) -> None:
        """For the holder, when no process of the account is left."""
        os.ftruncate(self.lock, 0)
        os.close(self.lock)


def choose_range() -> tuple[int, int]:
    """The first account of a free range, and how many it has.

    Raises:
        OSError: this host or container has no free range.
    """
    mapped = _read_ranges("/proc/self/uid_map", start=0, length=2)
    taken = [(found.pw_uid, 1) for found in pwd.getpwall()]
    taken += [each for file in ("/etc/subuid", "/etc/subgid") for each in _read_ranges(file, start=1, length=2, by=":")]
    for first, count in RANGES:
        is_mapped = any(start <= first and first + count <= start + length for start, length in mapped)
        if is_mapped and not any(start < first + count and first < start + length for start, length in taken):
            return first, count
    raise OSError(f"no free range of accounts: {RANGES} are in use or not mapped; set SHARDYARD_RUN_AS")


def take_account(first: int, count: int, groups: tuple[int, ...], processes: int) -> TakenAccount:
    """Take an account that no attempt on this host has.

    Raises:
        OSError: all are taken, or one that was left in use still has processes.
    """
    LOCKS.mkdir(parents=True, exist_ok=True, mode=0o700)
    begin = os.getpid()
    for number in range(count):
        uid = first + (begin + number) % count
        lock = os.open(LOCKS / str(uid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        if os.pread(lock, len(_IN_USE), 0):
            kill_account(uid)
        os.pwrite(lock, _IN_USE, 0)
        return TakenAccount(RankAccount(uid, uid, groups, f"shardyard-{uid - first}", processes, is_own=True), lock)
    raise OSError(f"all {count} accounts from {first} on are in use")


def kill_account(uid: int, seconds: float = SWEEP_SECONDS) -> None:
    """Kill all processes of an account, until none is left.

    Raises:
        OSError: some would not die.
    """
    deadline = time.monotonic() + seconds
    while found := [*processes_of_account(uid)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise OSError(f"processes {found} of account {uid} would not die")
        time.sleep(0.01)


def processes_of_account(uid: int) -> Iterator[int]:
    """Process ids that belong to an account, those that have ended and are not reaped left out."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid and not _has_ended(name):
                    yield int(name)


def _has_ended(pid: str) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def _read_ranges(file: str, *, start: int, length: int, by: str | None = None) -> list[tuple[int, int]]:
    """(first, count) of each line of a file, from the fields with these numbers."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(by) for line in lines if line.strip() and not line.startswith("#")]
    return [(int(found[start]), int(found[length])) for found in fields if len(found) > length]
