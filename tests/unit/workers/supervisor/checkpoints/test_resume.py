"""Waiting for a storage from which a checkpoint is read."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from jobs.files.checkpoints import DamagedCheckpoint, Progress
from jobs.model.state import SupervisorCommand
from workers.supervisor.checkpoints import resume
from workers.supervisor.checkpoints.resume import StartInterrupted, StorageTimeout
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.telemetry.publisher import TelemetryPublisher


@dataclass
class World:
    """A lifeline and a publisher, as far as they are needed."""

    command: SupervisorCommand = SupervisorCommand.GO
    lines: list[str] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)

    def log_line(self, text: str) -> None:
        self.lines.append(text)
        self.told.set()

    def flush_due(self, now: float) -> None:
        return

    def read(self, work: Callable[[Progress], str]) -> str:
        return resume._read_with_progress(work, "verifying", cast(LeaseHolder, self), cast(TelemetryPublisher, self))


def test_what_the_thread_has_made_or_raised_comes_back() -> None:
    assert World().read(lambda read: "done") == "done"
    for error in (DamagedCheckpoint("a bit"), OSError(5, "Input/output error")):
        with pytest.raises(type(error), match=str(error.args[-1])):
            World().read(_raise(error))
    with pytest.raises(
        DamagedCheckpoint, match="ZeroDivisionError"
    ):  # a fault of ours costs one checkpoint, not the job
        World().read(_raise(ZeroDivisionError("x")))


def _raise(error: Exception) -> Callable[[Progress], str]:
    def work(read: Progress) -> str:
        raise error

    return work


@pytest.mark.parametrize("command", [SupervisorCommand.CANCEL, SupervisorCommand.STOP, SupervisorCommand.LOST])
def test_a_command_ends_the_reading_at_once(command: SupervisorCommand) -> None:
    release = threading.Event()
    try:
        with pytest.raises(StartInterrupted) as caught:
            World(command).read(lambda read: str(release.wait(60)))
    finally:
        release.set()
    assert caught.value.command is command


def test_a_storage_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "STORAGE_TIMEOUT_SECONDS", 0.1)
    release = threading.Event()
    try:
        with pytest.raises(StorageTimeout):
            World().read(lambda read: str(release.wait(60)))
    finally:
        release.set()


def test_one_that_is_slow_is_not_and_the_log_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "STORAGE_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(resume, "PROGRESS_LINE_SECONDS", 0.0)
    world = World()

    def work(read: Progress) -> str:
        read(2_500_000_000)
        assert world.told.wait(60)
        return "done"

    assert world.read(work) == "done"
    assert world.lines[0] == "verifying: 2.5 GB so far"
