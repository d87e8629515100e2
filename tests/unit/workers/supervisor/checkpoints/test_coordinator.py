"""When ranks save together, and how they come to stop at the same step. Time is given, nothing waits."""

from collections.abc import Sequence

import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Outline, Paused, Saved, SavedFile, Step
from workers.runtime import commands
from workers.supervisor.checkpoints.coordinator import PAUSE_SKEW_SECONDS, SAVE_SECONDS, CheckpointCoordinator
from workers.supervisor.checkpoints.messages import CheckpointMessage


class FakeWriter:
    def __init__(self) -> None:
        self.has_room = True
        self.taken: list[int] = []
        self.missed: list[tuple[int, str]] = []

    def write_checkpoint(self, saves: Sequence[Saved]) -> None:
        self.taken.append(saves[0].step)

    def skip_checkpoint(self, step: int, why: str) -> None:
        self.missed.append((step, why))

    def take_messages(self) -> list[CheckpointMessage]:
        return []


class World:
    """Some ranks, what they were told, and a clock."""

    def __init__(self, ranks: int, every: int = 10, resumed: int = 0, stall_seconds: float | None = None) -> None:
        self.writer = FakeWriter()
        self.now = 1000.0
        self._said: list[tuple[int, bytes]] = []
        say = lambda rank, word: self._said.append((rank, word))  # noqa: E731
        self.coordinator = CheckpointCoordinator(ranks, every, self.writer, say, resumed, stall_seconds)

    def heed(self, rank: int, record: AnyRecord) -> dict[int, bytes]:
        self.coordinator.on_record(rank, record, self.now)
        return self.said()

    def gathers(self) -> bool:
        return self.coordinator.is_saving

    def saved(
        self, rank: int, step: int, *names: str, error: str = "", epoch: int = 0, sha256: str = "0" * 64
    ) -> dict[int, bytes]:
        files = tuple(SavedFile(name, 1, sha256) for name in names or (f"rank-{rank}.pt",))
        return self.heed(rank, Saved(rank, step, epoch, files, error))

    def paused(self, rank: int, step: int) -> dict[int, bytes]:
        return self.heed(rank, Paused(rank, step))

    def passes(self, seconds: float) -> dict[int, bytes]:
        self.now += seconds
        self.coordinator.on_tick(self.now)
        return self.said()

    def said(self) -> dict[int, bytes]:
        """Words since the last look; no rank gets two for one question."""
        said, self._said[:] = dict(self._said), []
        return said


def everybody(word: bytes, ranks: int = 2) -> dict[int, bytes]:
    return dict.fromkeys(range(ranks), word)


def test_ranks_go_on_together_when_the_last_one_has_saved() -> None:
    world = World(3)
    assert world.saved(1, 10) == {}
    assert world.saved(0, 10) == {}
    assert world.saved(2, 10) == everybody(commands.CONTINUE, 3)
    assert world.writer.taken == [10]
    assert world.saved(0, 20) == world.saved(2, 20) == {}
    assert world.saved(1, 20) == everybody(commands.CONTINUE, 3)
    assert world.writer.taken == [10, 20]


def test_ranks_wait_while_the_disk_is_busy_with_an_older_checkpoint() -> None:
    world = World(2)
    world.writer.has_room = False
    world.saved(0, 10)
    assert world.saved(1, 10) == world.passes(5) == {}
    assert world.gathers()
    world.writer.has_room = True
    assert world.passes(0.1) == everybody(commands.CONTINUE)
    assert world.writer.taken == [10]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"error": "disk\x07full"}, {}, "disk full; training continues"),
        ({}, {"step": 20}, "different steps"),
        ({}, {"epoch": 1}, "different steps"),
        ({"names": ["x.pt"]}, {"names": ["x.pt"]}, "same name"),
        ({"names": ["../x"]}, {}, "not allowed"),
        ({"names": ["manifest.json"]}, {}, "not allowed"),
        ({"names": [".x"]}, {}, "not allowed"),
        ({"names": ["x" * 101]}, {}, "not allowed"),
        ({"names": [f"x{number}" for number in range(65)]}, {}, "65 files"),
        ({"sha256": "0" * 65}, {}, "SHA-256"),
        ({"epoch": -1}, {"epoch": -1}, "epoch -1"),
    ],
)
def test_what_is_no_checkpoint_is_missed_and_training_goes_on(
    first: dict[str, object], second: dict[str, object], why: str
) -> None:
    world = World(2)
    said: dict[int, bytes] = {}
    for rank, options in enumerate((first, second)):
        names, step = options.pop("names", ()), options.pop("step", 10)
        said = world.saved(rank, step, *names, **options)  # type: ignore[arg-type, misc]
    assert said == everybody(commands.CONTINUE)
    assert world.writer.taken == []
    ((_, told),) = world.writer.missed
    assert why in told


@pytest.mark.parametrize(("stall_seconds", "waits"), [(None, 600), (5, 60), (120, 120), (5000, 600)])
def test_a_rank_that_does_not_save_is_waited_for_as_long_as_the_job_calls_no_stall(
    stall_seconds: float | None, waits: float
) -> None:
    world = World(2, stall_seconds=stall_seconds)
    world.saved(0, 10)
    assert world.passes(waits - 1) == {}
    assert world.passes(2) == {0: commands.CONTINUE}


def test_a_rank_that_does_not_save_holds_the_others_for_a_while_only() -> None:
    world = World(2)
    world.saved(0, 10)
    assert world.passes(SAVE_SECONDS - 1) == {}
    assert world.passes(2) == {0: commands.CONTINUE}
    assert world.writer.missed == [(10, f"rank 1 did not save within {SAVE_SECONDS:g} s; training continues")]
    assert not world.gathers()
    assert world.saved(1, 10) == {1: commands.CONTINUE}  # too late, and told at once
    world.saved(0, 20)
    assert world.saved(1, 20) == everybody(commands.CONTINUE)
    assert world.writer.taken == [20]


def test_silence_has_its_reason_from_the_step_that_is_due_to_the_last_part() -> None:
    world = World(1)
    world.heed(0, Outline(epochs=1, steps_per_epoch=15, total_steps=15, batch_size=1, dataset_rows=15))
    for step, due in ((7, False), (8, False), (9, True)):
        world.heed(0, _step(step))
        assert world.gathers() is due
    world.saved(0, 10)
    assert not world.gathers()
    world.heed(0, _step(14))  # the last of all
    assert world.gathers()
    world.passes(SAVE_SECONDS + 1)
    assert not world.gathers()  # a rank that hangs is the watchdog's again
    assert world.writer.missed == []


def _step(number: int) -> Step:
    step = dict.fromkeys(Step.__struct_fields__, 0) | {"step": number, "phase": "train", "splits": ()}
    return Step(**step)  # type: ignore[arg-type]


def test_ranks_that_stop_at_the_same_step_save_it_and_leave() -> None:
    world = World(2)
    world.coordinator.request_stop()
    assert world.paused(0, 7) == {}
    assert world.paused(1, 7) == everybody(commands.SAVE)
    assert world.passes(1) == {}
    assert world.saved(0, 7) == {}
    assert world.saved(1, 7) == everybody(commands.LEAVE)
    assert world.writer.taken == [7]
    assert world.coordinator.has_released


def test_a_rank_that_stopped_too_early_takes_one_more_step_for_the_one_that_waits_for_it() -> None:
    world = World(2)
    world.coordinator.request_stop()
    world.paused(0, 7)
    assert world.passes(PAUSE_SKEW_SECONDS / 2) == {}
    assert world.passes(PAUSE_SKEW_SECONDS) == {0: commands.CONTINUE}  # rank 1 hangs in a collective of step 8
    assert world.paused(1, 8) == {}
    assert world.paused(0, 8) == everybody(commands.SAVE)


def test_ranks_that_all_paused_at_different_steps_are_brought_to_the_highest() -> None:
    world = World(3)
    world.coordinator.request_stop()
    world.paused(0, 7)
    world.paused(1, 8)
    assert world.paused(2, 7) == {0: commands.CONTINUE, 2: commands.CONTINUE}
    world.paused(2, 8)
    assert world.paused(0, 8) == everybody(commands.SAVE, 3)


def test_a_step_that_was_just_saved_is_not_saved_again_by_a_stop() -> None:
    world = World(2)
    world.saved(0, 10)
    world.saved(1, 10)
    world.coordinator.request_stop()
    world.paused(0, 10)
    assert world.paused(1, 10) == everybody(commands.LEAVE)
    assert world.writer.taken == [10]


def test_a_checkpoint_that_is_under_way_when_the_stop_comes_is_finished_first() -> None:
    world = World(2)
    world.saved(0, 10)
    world.coordinator.request_stop()
    assert world.saved(1, 10) == everybody(commands.CONTINUE)
    world.paused(1, 10)
    assert world.paused(0, 10) == everybody(commands.LEAVE)
    assert world.writer.taken == [10]


def test_a_rank_that_paused_where_another_saves_saves_too() -> None:
    world = World(2)
    world.coordinator.request_stop()
    world.saved(0, 10)
    assert world.paused(1, 10) == {1: commands.SAVE}
    assert world.saved(1, 10) == everybody(commands.LEAVE)


def test_a_stop_whose_checkpoint_cannot_be_saved_is_not_tried_for_ever() -> None:
    world = World(1)
    world.coordinator.request_stop()
    assert world.paused(0, 7) == {0: commands.SAVE}
    assert world.saved(0, 7, error="no space left on device") == {0: commands.LEAVE}
    assert world.writer.missed == [(7, "no space left on device")]


def test_a_run_that_was_resumed_and_stopped_at_the_same_step_has_nothing_to_save() -> None:
    world = World(1, resumed=7)
    world.coordinator.request_stop()
    assert world.paused(0, 7) == {0: commands.LEAVE}


def test_nobody_waits_for_a_word_when_the_attempt_ends() -> None:
    world = World(3)
    world.saved(0, 10)
    world.coordinator.request_stop()
    world.paused(1, 9)
    world.coordinator.release_all()
    assert world.said() == {0: commands.LEAVE, 1: commands.LEAVE}
    assert world.saved(2, 10) == world.paused(2, 10) == {2: commands.LEAVE}
    world.coordinator.release_all()
    assert world.said() == {}
    assert world.writer.taken == []


def test_a_pause_without_a_stop_is_the_end_of_the_rank() -> None:
    assert World(1).paused(0, 3) == {0: commands.LEAVE}


def test_ranks_that_pause_beside_one_that_has_finished_go_on() -> None:
    world = World(2)
    world.coordinator.request_stop()
    world.coordinator.rank_done(1)
    assert world.paused(0, 7) == {}
    assert world.passes(2 * PAUSE_SKEW_SECONDS) == {0: commands.CONTINUE}
