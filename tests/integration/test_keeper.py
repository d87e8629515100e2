"""The keeper of a worker, with small programs in the worker's place."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.node.shutdown import ShutdownOptions
from workers.node.worker_monitor import RestartPolicy, policy_for

pytestmark = pytest.mark.integration

SECONDS = 60.0

#: Writes its pid once it heeds signals, then sleeps; SIGTERM ends it in order.
STEADY = "trap 'exit 0' TERM; echo $$ >> {pids}; while :; do sleep 0.05; done"
#: Says that it has heard SIGTERM, and ends once the test has taken that away.
SLOW = (
    "trap 'touch {orphan}' TERM; echo $$ >> {pids}; while [ ! -e {orphan} ]; do sleep 0.05; done; "
    "trap '' TERM; while [ -e {orphan} ]; do sleep 0.05; done; exit 0"
)
STUBBORN = "trap '' TERM; echo $$ >> {pids}; while :; do sleep 0.05; done"
BROKEN = "echo $$ >> {pids}; exit 7"
#: Leaves a grandchild behind, whose parent ends at once.
WITH_ORPHAN = "(sleep 0.2 & echo $! > {orphan}); " + STEADY

KEEPER = """
import json, sys
from workers.node.worker_monitor import RestartPolicy, keep_running
command, pace = json.loads(sys.argv[1])
sys.exit(keep_running(command, RestartPolicy(**pace)))
"""


class Kept:
    """A keeper of a shell script, and the pids that the script has had."""

    def __init__(self, directory: Path) -> None:
        self._pids = directory / "pids"
        self.orphan = directory / "orphan"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, script: str, **pace: float | bool) -> None:
        command = ["/bin/sh", "-c", script.format(pids=self._pids, orphan=self.orphan)]
        patience = {"steady_seconds": 0.3, "first_pause": 0.01, "max_pause": 0.05, "stop_seconds": 5.0} | pace
        self.process = subprocess.Popen([sys.executable, "-c", KEEPER, json.dumps([command, patience])])

    @property
    def keeper(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def pids(self) -> list[int]:
        return [int(line) for line in self._pids.read_text().split()] if self._pids.exists() else []

    def worker(self, number: int = 1) -> int:
        """The pid of the `number`-th worker, once it runs."""
        wait_until(lambda: len(self.pids()) >= number)
        return self.pids()[number - 1]

    def end(self) -> None:
        if self.keeper.poll() is None:
            for pid in (self.keeper.pid, *self.pids()[-1:]):
                os.kill(pid, signal.SIGKILL)
            self.keeper.wait(SECONDS)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Not started yet."""
    kept = Kept(tmp_path)
    yield kept
    kept.end()


def test_a_worker_that_dies_is_started_again(kept: Kept) -> None:
    kept.start(STEADY)
    first = kept.worker()
    os.kill(first, signal.SIGKILL)
    second = kept.worker(2)
    assert second != first
    assert is_gone(first)
    assert not is_gone(second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_is_passed_on_to_the_worker_and_waits_for_its_end(kept: Kept, number: signal.Signals) -> None:
    kept.start(STEADY)
    worker = kept.worker()
    kept.keeper.send_signal(number)
    assert kept.keeper.wait(SECONDS) == 0
    assert kept.pids() == [worker]
    assert is_gone(worker)


def test_a_worker_that_does_not_end_in_time_is_killed(kept: Kept) -> None:
    kept.start(STUBBORN, stop_seconds=0.2)
    worker = kept.worker()
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(SECONDS) == 128 + signal.SIGKILL
    assert is_gone(worker)


def test_a_second_stop_does_not_wait(kept: Kept) -> None:
    kept.start(STUBBORN, stop_seconds=600.0)
    kept.worker()
    kept.keeper.send_signal(signal.SIGTERM)
    wait_until(lambda: signal.SIGTERM not in pending(kept.keeper.pid))
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(SECONDS) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_in_a_block_both_signals_are_a_stop_and_a_repeat_changes_nothing(kept: Kept, number: signal.Signals) -> None:
    kept.start(SLOW, stop_seconds=SECONDS, in_block=True)
    worker = kept.worker()
    for _ in range(3):
        kept.keeper.send_signal(number)
    os.kill(worker, signal.SIGUSR2)  # as engines do that signal all processes of a node
    wait_until(lambda: kept.orphan.exists())
    kept.keeper.send_signal(signal.SIGTERM)
    kept.keeper.send_signal(signal.SIGUSR2)
    wait_until(lambda: not {signal.SIGTERM, signal.SIGUSR2} & pending(kept.keeper.pid))
    assert not is_gone(worker)
    kept.orphan.unlink()
    assert kept.keeper.wait(SECONDS) == 0


def test_in_a_block_a_worker_that_leaves_by_itself_is_not_started_again(kept: Kept) -> None:
    kept.start("echo $$ >> {pids}; exit 0", in_block=True)
    assert kept.keeper.wait(SECONDS) == 0
    assert len(kept.pids()) == 1


def test_in_a_block_a_worker_that_dies_is_started_again_and_stopped_when_its_lifetime_is_over(kept: Kept) -> None:
    kept.start(STEADY, in_block=True, lifetime=3.0)
    began = time.monotonic()
    os.kill(kept.worker(), signal.SIGKILL)
    assert kept.keeper.wait(SECONDS) == 0
    assert time.monotonic() - began > 2
    assert len(kept.pids()) >= 2


def test_a_stop_between_two_starts_starts_nothing_more(kept: Kept) -> None:
    kept.start(STEADY, first_pause=600.0, max_pause=600.0)
    worker = kept.worker()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: is_gone(worker))
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(SECONDS) == 0
    assert kept.pids() == [worker]


def test_a_worker_that_never_stays_up_is_given_up_with_its_exit_code(kept: Kept) -> None:
    kept.start(BROKEN, steady_seconds=SECONDS)
    assert kept.keeper.wait(SECONDS) == 7
    assert len(kept.pids()) == 5


def test_a_worker_that_once_stayed_up_is_never_given_up(kept: Kept) -> None:
    kept.start(STEADY)
    kept.worker()
    seen = time.monotonic()
    wait_until(lambda: time.monotonic() - seen > 0.5)
    for number in range(1, 9):
        os.kill(kept.worker(number), signal.SIGKILL)
    assert not is_gone(kept.worker(9))


def test_orphans_that_end_are_reaped(kept: Kept) -> None:
    kept.start(WITH_ORPHAN)
    kept.worker()
    wait_until(lambda: is_gone(int(kept.orphan.read_text())))


def test_a_worker_does_not_outlive_its_keeper(kept: Kept) -> None:
    kept.start(STEADY)
    worker = kept.worker()
    kept.keeper.kill()
    kept.keeper.wait(SECONDS)
    wait_until(lambda: is_gone(worker))


def test_the_worker_gets_signals_unblocked(kept: Kept) -> None:
    kept.start(STEADY)
    ours = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    wait_until(lambda: not ours & blocked(kept.worker()))  # for a moment around a fork, libc blocks all


def pending(pid: int) -> set[int]:
    return _signals(pid, "ShdPnd")


def blocked(pid: int) -> set[int]:
    return _signals(pid, "SigBlk")


def _signals(pid: int, field: str) -> set[int]:
    """One of the signal masks in /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith(field)).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


@pytest.mark.parametrize("wrong", [{"SHARDYARD_REDIS_URL": "http://127.0.0.1"}, {"SHARDYARD_DEVICES": "cpu:0"}])
def test_settings_that_cannot_work_end_it_before_a_worker_starts(wrong: dict[str, str]) -> None:
    environment = os.environ | {"SHARDYARD_REDIS_URL": "redis://127.0.0.1:1"} | wrong
    command = [sys.executable, "-m", "workers.node.worker_monitor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 2
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["cannot_start"]


#: Says that it has heard of a SIGTERM; the second one has it leave.
DRAINS = (
    "echo $$ >> {pids}; trap 'asked=1$asked; echo >> {orphan}' TERM; "
    "while [ ${{#asked}} -lt 2 ]; do sleep 0.05; done; exit 0"
)


def test_a_worker_that_drains_hears_of_a_second_stop_too(kept: Kept) -> None:
    kept.start(DRAINS, stop_seconds=600.0, hurry_seconds=600.0)
    worker = kept.worker()
    wait_until(lambda: signal.SIGTERM in caught(worker))
    kept.keeper.send_signal(signal.SIGTERM)
    wait_until(kept.orphan.exists)
    assert kept.keeper.poll() is None
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(SECONDS) == 0


def test_a_worker_that_drains_and_does_not_hurry_is_killed(kept: Kept) -> None:
    kept.start(STUBBORN, stop_seconds=600.0, hurry_seconds=0.2)
    worker = kept.worker()
    for _ in range(2):
        kept.keeper.send_signal(signal.SIGTERM)
        wait_until(lambda: signal.SIGTERM not in pending(kept.keeper.pid))
    assert kept.keeper.wait(SECONDS) == 128 + signal.SIGKILL
    assert is_gone(worker)


def caught(pid: int) -> set[int]:
    return _signals(pid, "SigCgt")


def test_the_keeper_is_as_patient_as_the_drain_and_the_checkpoints_may_take() -> None:
    assert policy_for(ShutdownOptions(), 20) == RestartPolicy(stop_seconds=50)
    timed = policy_for(ShutdownOptions(drain=True, drain_seconds=600), 20)
    assert timed == RestartPolicy(stop_seconds=650, hurry_seconds=10)
    assert policy_for(ShutdownOptions(drain=True), 20).stop_seconds > 86_400
