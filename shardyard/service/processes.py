"""The processes that `shardyard up` runs: one mechanism starts, adopts, watches and stops them.

Each service has a lock file. The child inherits it, locked, so the lock is held exactly as long as
the child lives, whatever happens to the process that started it. A start therefore meets one of
three cases:

    lock free                         spawn
    lock held, same command           adopt: an earlier `up` was killed, and its child lives on
    lock held, other command          stop the old one, then spawn

A service with `keep` set is adopted whatever its command was: two Redis servers on one data
directory would both accept writes.

Linux only: ends are noticed through pidfds, so a recycled pid is never signalled.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import shardyard
from jobs.support.log_follower import LOG_VARIABLE
from shardyard.contract.errors import Unavailable
from shardyard.service.service_logs import find_last_error, open_log, rotate_log

#: More deaths than this within the window end the service: a restart does not help any more. A process that was
#: killed by SIGKILL has nothing wrong with itself, so it is started again however often that happens.
MAX_DEATHS = 5
DEATH_WINDOW_SECONDS = 60.0
FIRST_BACK_OFF_SECONDS = 0.5
MAX_BACK_OFF_SECONDS = 8.0
#: Of a server that runs wait for: without it no lease is renewed.
MAX_BACK_OFF_SECONDS_OF_REDIS = 2.0
KILL_SECONDS = 5.0

#: With less room on its disk than this a service that dies is started again however often: Redis ends rather than
#: promise what it cannot write down, and is well when there is room.
LEAST_ROOM_BYTES = 1024 * 1024

#: Variables of the command line that mean nothing to a service, and must not make it look changed.
CLIENT_VARIABLES = ("SHARDYARD_URL", "SHARDYARD_TOKEN")

#: How much sooner than an ordinary process (0) the kernel ends this one where memory runs out; ranks have 500.
OOM_SCORE = -500

How = Literal["started", "adopted", "replaced"]


class ServiceError(Unavailable):
    """A process of the service does not start, does not stay up, or blocks another one."""

    code: ClassVar[str] = "service_failed"


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One long-running process. `env` is added to this process's own environment."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    lock_path: Path
    log_path: Path
    keep: bool = False
    stop_seconds: float = 10.0

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in CLIENT_VARIABLES}
        return inherited | dict(self.env)

    def fingerprint(self) -> str:
        """A digest that changes if the service would run differently: other code, arguments or settings."""
        settings = {
            name: value
            for name, value in self.environment().items()
            if name in self.env or name.startswith(("SHARDYARD_", "CUDA_", "OTEL_", "AWS_"))
        }
        command = json.dumps([shardyard.__version__, self.argv, sorted(settings.items())])
        return hashlib.sha256(command.encode()).hexdigest()


@dataclass(slots=True)
class _RunningProcess:
    service: ServiceProcess
    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None  # None: adopted, so its exit code is not ours to read

    def reap(self) -> "_ProcessEnd":
        """How the ended process ended."""
        os.close(self.pidfd)
        if self.child is None:
            return _ProcessEnd("ended", by_itself=True)
        code = self.child.wait(timeout=KILL_SECONDS)
        text = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return _ProcessEnd(text, by_itself=code != -signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _ProcessEnd:
    how: str
    by_itself: bool  # it was not killed from outside, as far as is known
    at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _PlannedRestart:
    service: ServiceProcess
    due: float  # time.monotonic()


@dataclass(slots=True)
class ProcessGroup:
    """The services of one `up`, by name.

    `say` receives one sentence about everything unexpected. `hurried` is asked while a stop waits:
    once it says true, what has not ended is killed.
    """

    say: Callable[[str], None]
    hurried: Callable[[], bool] = lambda: False
    _running: dict[str, _RunningProcess] = field(default_factory=dict)
    _deaths: dict[str, deque[_ProcessEnd]] = field(default_factory=dict)
    _restarts: dict[str, _PlannedRestart] = field(default_factory=dict)

    def start(self, service: ServiceProcess) -> How:
        """Start `service`, or adopt the process that survived an earlier `up`.

        Raises:
            ServiceError: the program cannot be run, or its lock is held by a process out of reach.
        """
        how: How = "started"
        while True:
            lock = _open_lock(service.lock_path)
            if lock is not None:
                self._running[service.name] = _spawn_service(service, lock)
                return how
            survivor = _find_survivor(service)
            if survivor is None:
                continue  # it ended between the two checks
            if service.keep or _recorded_fingerprint(service.lock_path) == service.fingerprint():
                self._running[service.name] = survivor
                return "adopted"
            self._end_processes(survivor)
            how = "replaced"

    def watch(self, timeout: float, *, restart: bool = True) -> None:
        """Wait up to `timeout` seconds for a process to end or to be due again; restart what died, and rotate logs.

        Raises:
            ServiceError: one service died too often, or (without `restart`: while starting) at all.
        """
        now = time.monotonic()
        soonest = min((planned.due for planned in self._restarts.values()), default=now + timeout)
        ended = _wait_for_end(self._running.values(), max(0.0, min(timeout, soonest - now)))
        for running in self._running.values():
            rotate_log(running.service.log_path)
        for running in ended:
            self._note_death(running, allowed=MAX_DEATHS if restart else 0)
        for name, planned in list(self._restarts.items()):
            if planned.due <= time.monotonic():
                del self._restarts[name]
                self.start(planned.service)
                self.say(f"{name} is running again (pid {self._running[name].pid})")

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def stop(self, *names: str) -> None:
        """SIGTERM to all at once, wait as long as each service may take, then SIGKILL. A stopped service is no
        error."""
        for name in names:
            self._restarts.pop(name, None)
        running = [found for name in names if (found := self._running.pop(name, None)) is not None]
        self._end_processes(*running)

    def end_survivor(self, service: ServiceProcess) -> bool:
        """End what an earlier `up` has left of a service that this one does not start; False where nothing is left."""
        survivor = _find_survivor(service) if is_alive(service) else None
        if survivor is None:
            return False
        self._end_processes(survivor)
        return True

    def _end_processes(self, *processes: _RunningProcess) -> None:
        for running in processes:
            _send_signal(running, signal.SIGTERM)
        begun = time.monotonic()
        for running in processes:
            self._await_end(running, begun + running.service.stop_seconds)

    def _await_end(self, running: _RunningProcess, deadline: float) -> None:
        """Wait for a process that was asked to end, and kill it once the deadline is over; `deadline` is monotonic."""
        service = running.service
        while not _wait_for_end([running], 0.05):
            # Redis gets its whole time even in a fast stop, so that everything it has accepted is on disk.
            if time.monotonic() > deadline or (self.hurried() and not service.keep):
                why = "did not end in time" if time.monotonic() > deadline else "is not waited for"
                self.say(f"{service.name} (pid {running.pid}) {why}; killing it")
                _send_signal(running, signal.SIGKILL)
                if not _wait_for_end([running], KILL_SECONDS):
                    raise ServiceError(f"{service.name} (pid {running.pid}) does not end, not even when killed")
                break
        running.reap()

    def _note_death(self, running: _RunningProcess, allowed: int) -> None:
        service, death = running.service, running.reap()
        del self._running[service.name]
        deaths = self._deaths.setdefault(service.name, deque(maxlen=MAX_DEATHS + 1))
        deaths.append(death)
        recent = [one for one in deaths if death.at - one.at <= DEATH_WINDOW_SECONDS]
        fatal = len(recent) if not allowed else sum(one.by_itself for one in recent)
        full = bool(allowed) and not _has_room(service.lock_path.parent)
        if fatal > allowed and not full:
            often = f", {len(recent)} times within {DEATH_WINDOW_SECONDS:.0f} s" if len(recent) > 1 else ""
            why = find_last_error(service.log_path)
            raise ServiceError(f"{service.name} {death.how}{often}{f': {why}' if why else ''}. Log: {service.log_path}")
        longest = MAX_BACK_OFF_SECONDS_OF_REDIS if service.keep else MAX_BACK_OFF_SECONDS
        pause = min(FIRST_BACK_OFF_SECONDS * 2 ** (len(recent) - 1), longest)
        self._restarts[service.name] = _PlannedRestart(service, death.at + pause)
        again = f"starting it again in {pause:g} s, see {service.log_path}"
        if full:
            again = f"there is no room left in {service.lock_path.parent}; " + again
        self.say(f"{service.name} (pid {running.pid}) {death.how}; {again}")


def is_alive(service: ServiceProcess) -> bool:
    """Whether a process holds the service's lock now."""
    lock = _open_lock(service.lock_path)
    if lock is None:
        return True
    os.close(lock)
    return False


@contextlib.contextmanager
def sole_owner(path: Path) -> Iterator[None]:
    """Hold `path` as this process's own lock; children do not inherit it.

    Raises:
        ServiceError: another process holds it; the message names its pid.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _open_lock(path)
    if lock is None:
        raise ServiceError(
            f"`shardyard up` already runs on {path.parent} (pid {path.read_text().strip() or 'unknown'}). "
            "Stop it first, or give this one another --data-dir."
        )
    try:
        _write_lock(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another process does."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _spawn_service(service: ServiceProcess, lock: int) -> _RunningProcess:
    # Written before the child exists: without the record, a surviving process could not be identified.
    _write_lock(lock, json.dumps({"fingerprint": service.fingerprint(), "argv": service.argv}).encode())
    try:
        with open_log(service.log_path) as log:
            child = subprocess.Popen(
                service.argv,
                env=service.environment() | {LOG_VARIABLE: str(service.log_path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal reaches `up` alone, which stops all in order
                pass_fds=(lock,),
            )
    except OSError as error:
        raise ServiceError(f"cannot start {service.name} ({service.argv[0]}): {error}") from error
    finally:
        os.close(lock)
    _spare_from_oom(child.pid)
    return _RunningProcess(service, child.pid, os.pidfd_open(child.pid), child)


def _spare_from_oom(pid: int) -> None:
    """Where memory runs out, have the kernel end others first, if this process may ask for that."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))


def _write_lock(lock: int, body: bytes) -> None:
    """Write `body` to a lock file, in place: a full disk could truncate the file and then refuse the write."""
    if os.pread(lock, len(body) + 1, 0) != body:
        os.pwrite(lock, body, 0)
        os.ftruncate(lock, len(body))


def _has_room(directory: Path) -> bool:
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize >= LEAST_ROOM_BYTES


def _find_survivor(service: ServiceProcess) -> _RunningProcess | None:
    """The process that holds the service's lock, or None when it has just ended.

    Found through /proc rather than through a recorded pid, which may by now belong to another process.
    """
    deadline = time.monotonic() + service.stop_seconds
    while True:
        holders = _lock_holders(service.lock_path)
        for pid in holders:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    return _RunningProcess(service, pid, os.pidfd_open(pid), None)
        if not holders and is_alive(service):
            who = "a process that cannot be seen from here: of another user, container or host"
        elif holders:
            # For example the child with which Redis rewrites its log: it ends by itself.
            who = f"descendants of an earlier {service.name}, pid {', '.join(map(str, holders))}"
        else:
            return None
        if time.monotonic() > deadline:
            raise ServiceError(f"{service.lock_path} is held by {who}. End it, then try again.")
        time.sleep(0.05)


def _lock_holders(path: Path) -> list[int]:
    """Processes that have `path` open, as far as this user may see them."""
    wanted = path.stat()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), wanted):
                        found.append(int(process.name))
                        break
    return sorted(found)


def _recorded_fingerprint(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["fingerprint"])
    except (ValueError, KeyError, TypeError):
        return None


def _send_signal(running: _RunningProcess, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(running.pidfd, number)


def _wait_for_end(candidates: Collection[_RunningProcess], timeout: float) -> list[_RunningProcess]:
    """Those that have ended; waits up to `timeout` seconds for the first."""
    with selectors.DefaultSelector() as selector:
        for running in candidates:
            selector.register(running.pidfd, selectors.EVENT_READ, running)
        return [key.data for key, _ in selector.select(timeout)]
