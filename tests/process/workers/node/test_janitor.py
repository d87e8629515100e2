"""What a node clears away in passing."""

import fcntl
import os
from pathlib import Path

import pytest

from jobs.store import AttemptId
from jobs.store.client import RedisStore
from workers.node.janitor import MAX_CLEARED, Janitor
from workers.runtime.launch import AttemptDirectory

LEFT = AttemptId("default", "left", 1)


@pytest.fixture
def held() -> set[AttemptId]:
    return set()


@pytest.fixture
def rounds(tmp_path: Path, held: set[AttemptId]) -> Janitor:
    control = RedisStore.from_url("unix:///never-connected")
    return Janitor("n1", (), tmp_path / "state", tmp_path / "storage", control, lambda: held)


def remains(tmp_path: Path, attempt: AttemptId = LEFT) -> AttemptDirectory:
    marks = AttemptDirectory.of(tmp_path / "state", attempt)
    marks.create()
    marks.supervisor_lock.touch()
    return marks


def test_what_lies_there_in_two_rounds_is_cleared_away(rounds: Janitor, tmp_path: Path) -> None:
    marks = remains(tmp_path)
    rounds.clear_orphans()
    assert marks.directory.exists(), "it may be an attempt that is just being started"
    rounds.clear_orphans()
    assert not marks.directory.exists()


def test_what_an_attempt_holds_devices_for_is_left_to_the_agent(
    rounds: Janitor, tmp_path: Path, held: set[AttemptId]
) -> None:
    marks = remains(tmp_path)
    rounds.clear_orphans()
    held.add(LEFT)
    rounds.clear_orphans()
    held.clear()
    rounds.clear_orphans()
    assert marks.directory.exists(), "it begins anew"


def test_an_attempt_whose_supervisor_lives_is_left_alone(rounds: Janitor, tmp_path: Path) -> None:
    marks = remains(tmp_path)
    taken, told = os.pipe(), os.pipe()
    supervisor = os.fork()  # a record lock does not keep out the process that has it
    if supervisor == 0:
        with marks.supervisor_lock.open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            os.write(taken[1], b"x")
            os.close(told[1])
            os.read(told[0], 1)
            os._exit(0)
    os.read(taken[0], 1)
    try:
        for _ in range(3):
            rounds.clear_orphans()
        assert marks.directory.exists()
    finally:
        for fd in (told[1], told[0], *taken):
            os.close(fd)
        os.waitpid(supervisor, 0)


def test_a_round_clears_a_bounded_number(rounds: Janitor, tmp_path: Path) -> None:
    made = [remains(tmp_path, AttemptId("default", f"left{n:02d}", 1)) for n in range(MAX_CLEARED + 3)]
    rounds.clear_orphans()
    rounds.clear_orphans()
    assert sum(marks.directory.exists() for marks in made) == 3
