"""The process manager of `shardyard up`, with small programs in the place of its services."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from shardyard.service import processes
from shardyard.service.processes import ProcessGroup, ServiceError, ServiceProcess

pytestmark = pytest.mark.integration

SLEEP = ("sleep", "600")
STUBBORN = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")

#: Starts one service as `up` would, says its pid, and stays: to be killed by the test.
PARENT = """
import json, sys, time
from pathlib import Path
from shardyard.service.processes import ProcessGroup, ServiceProcess
name, argv, env, directory = json.loads(sys.argv[1])
manager = ProcessGroup(say=print)
manager.start(ServiceProcess(name, tuple(argv), env, Path(directory) / "lock", Path(directory) / "log"))
print(manager.pid(name), flush=True)
time.sleep(600)
"""


class Harness:
    """Makes services in one directory, and ends whatever is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[str] = []
        self.hurry = False
        self.manager = ProcessGroup(say=self.said.append, hurried=lambda: self.hurry)
        self._names: set[str] = set()

    def service(
        self, argv: tuple[str, ...] = SLEEP, *, keep: bool = False, seconds: float = 30, **env: str
    ) -> ServiceProcess:
        self._names.add("it")
        return ServiceProcess("it", argv, env, self.directory / "lock", self.directory / "log", keep, seconds)

    def killed_parent_of(self, service: ServiceProcess) -> int:
        """Start `service` under another process, kill -9 that process, and return the pid that is left."""
        command = json.dumps([service.name, service.argv, dict(service.env), str(self.directory)])
        with subprocess.Popen([sys.executable, "-c", PARENT, command], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            parent.kill()
        return pid

    def watch_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.manager.watch(0.05)

    def close(self) -> None:
        self.hurry = True
        for name in self._names:
            self.manager.stop(name)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    yield harness
    harness.close()


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_the_lock_is_held_exactly_as_long_as_the_child_lives(harness: Harness) -> None:
    service = harness.service()
    assert not processes.is_alive(service)
    assert harness.manager.start(service) == "started"
    assert processes.is_alive(service)
    harness.manager.stop("it")
    assert not processes.is_alive(service)


def test_the_kernel_is_asked_to_end_a_service_after_others(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.OOM_SCORE < 0
    monkeypatch.setattr(processes, "OOM_SCORE", 321)  # which every account may ask for
    harness.manager.start(harness.service())
    assert Path(f"/proc/{harness.manager.pid('it')}/oom_score_adj").read_text().strip() == "321"


def test_a_survivor_of_a_killed_parent_is_adopted(harness: Harness) -> None:
    service = harness.service(COLOUR="red")
    survivor = harness.killed_parent_of(service)
    assert harness.manager.start(service) == "adopted"
    assert harness.manager.pid("it") == survivor
    harness.manager.stop("it")
    assert not is_running(survivor)


def test_a_survivor_with_other_settings_is_stopped_and_replaced(harness: Harness) -> None:
    survivor = harness.killed_parent_of(harness.service(COLOUR="red"))
    assert harness.manager.start(harness.service(COLOUR="blue")) == "replaced"
    assert not is_running(survivor)
    assert is_running(harness.manager.pid("it"))


def test_a_survivor_that_must_not_be_doubled_is_adopted_whatever_its_command_was(harness: Harness) -> None:
    survivor = harness.killed_parent_of(harness.service(("sleep", "601")))
    assert harness.manager.start(harness.service(keep=True)) == "adopted"
    assert harness.manager.pid("it") == survivor


def test_a_lock_kept_by_a_mere_descendant_is_refused_with_its_pid(harness: Harness) -> None:
    leak = subprocess.Popen(
        [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'], close_fds=False)"],
        pass_fds=(held := processes._open_lock(harness.directory / "lock") or -1,),
    )
    os.close(held)
    try:
        with pytest.raises(ServiceError, match=rf"descendants of an earlier it, pid .*{leak.pid}"):
            harness.manager.start(harness.service(seconds=0.2))
    finally:
        for pid in processes._lock_holders(harness.directory / "lock"):
            os.kill(pid, signal.SIGKILL)
        leak.wait(timeout=60)


def test_a_death_is_said_aloud_and_followed_by_a_restart(harness: Harness) -> None:
    harness.manager.start(harness.service())
    first = harness.manager.pid("it")
    os.kill(first, signal.SIGKILL)
    harness.watch_until(lambda: len(harness.said) == 2)
    assert f"it (pid {first}) was killed by SIGKILL; starting it again in 0.5 s" in harness.said[0]
    assert harness.said[1] == f"it is running again (pid {harness.manager.pid('it')})"
    assert is_running(harness.manager.pid("it"))


def test_the_death_of_an_adopted_process_is_noticed_too(harness: Harness) -> None:
    survivor = harness.killed_parent_of(harness.service())
    harness.manager.start(harness.service())
    os.kill(survivor, signal.SIGKILL)
    harness.watch_until(lambda: len(harness.said) == 2)
    assert harness.manager.pid("it") != survivor


def test_too_many_deaths_end_in_an_error_that_shows_the_log(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "FIRST_BACK_OFF_SECONDS", 0.01)
    harness.manager.start(harness.service(("sh", "-c", "echo no room left for me; exit 3")))
    with pytest.raises(ServiceError, match=r"it ended with exit code 3, 6 times(.|\n)*no room left for me"):
        harness.watch_until(lambda: False)


def _says_two_more(harness: Harness, than: int) -> bool:
    return len(harness.said) == than + 2


def test_a_process_that_somebody_kills_is_started_again_however_often(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FIRST_BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr(processes, "MAX_BACK_OFF_SECONDS", 0.02)
    harness.manager.start(harness.service())
    for _ in range(processes.MAX_DEATHS + 2):
        said = len(harness.said)
        os.kill(harness.manager.pid("it"), signal.SIGKILL)
        harness.watch_until(partial(_says_two_more, harness, said))
    assert is_running(harness.manager.pid("it"))


def test_a_process_that_ignores_sigterm_is_killed_at_its_deadline(harness: Harness) -> None:
    harness.manager.start(harness.service(STUBBORN, seconds=0.3))
    pid = harness.manager.pid("it")
    harness.watch_until(lambda: "ready" in (harness.directory / "log").read_text())
    harness.manager.stop("it")
    assert not is_running(pid)
    assert harness.said == [f"it (pid {pid}) did not end in time; killing it"]


def test_several_are_asked_to_end_before_any_is_waited_for(harness: Harness) -> None:
    """The first one ends when the second one has been asked to."""
    heard = harness.directory / "heard"
    first = f"trap 'while [ ! -e {heard} ]; do sleep 0.05; done; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    second = f"trap 'touch {heard}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    for name, program in (("first", first), ("second", second)):
        paths = harness.directory / f"{name}.lock", harness.directory / f"{name}.log"
        harness.manager.start(ServiceProcess(name, ("sh", "-c", program), {}, *paths, stop_seconds=60))
    harness.watch_until(
        lambda: all("ready" in (harness.directory / f"{name}.log").read_text() for name in ("first", "second"))
    )
    harness.manager.stop("first", "second")
    assert harness.said == []


def test_a_survivor_that_is_not_wanted_any_more_is_ended(harness: Harness) -> None:
    service = harness.service()
    survivor = harness.killed_parent_of(service)
    assert harness.manager.end_survivor(service)
    assert not is_running(survivor)
    assert not harness.manager.end_survivor(service)


def test_a_hurried_stop_does_not_wait_for_the_deadline(harness: Harness) -> None:
    harness.manager.start(harness.service(STUBBORN, seconds=60))
    harness.watch_until(lambda: "ready" in (harness.directory / "log").read_text())
    harness.hurry = True
    begun = time.monotonic()
    harness.manager.stop("it")
    assert time.monotonic() - begun < 30


def test_a_program_that_does_not_exist_is_a_clear_error(harness: Harness) -> None:
    with pytest.raises(ServiceError, match=r"cannot start it \(no-such-program\)"):
        harness.manager.start(harness.service(("no-such-program",)))
    assert not processes.is_alive(harness.service())


def test_a_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    message = rf"already runs on {tmp_path} \(pid {os.getpid()}\)"
    first = processes.sole_owner(tmp_path / "up.lock")
    with first, pytest.raises(ServiceError, match=message), processes.sole_owner(tmp_path / "up.lock"):
        pass
    with processes.sole_owner(tmp_path / "up.lock"):
        pass


def test_children_do_not_inherit_the_owner_lock(harness: Harness) -> None:
    with processes.sole_owner(harness.directory / "up.lock"):
        harness.manager.start(harness.service())
    with processes.sole_owner(harness.directory / "up.lock"):
        assert is_running(harness.manager.pid("it"))


def test_a_client_token_in_the_shell_neither_reaches_a_service_nor_makes_it_look_changed(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = harness.service().fingerprint()
    monkeypatch.setenv("SHARDYARD_TOKEN", "secret")
    assert harness.service().fingerprint() == before
    assert "SHARDYARD_TOKEN" not in harness.service().environment()
    monkeypatch.setenv("SHARDYARD_LEASE_SECONDS", "7")
    assert harness.service().fingerprint() != before
