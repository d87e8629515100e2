"""What the recorder sends, and when."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from jobs.protocol.records import BatchSplit, Note, Step
from tests.support.training_runs import Kept, context_of
from workers.probe import step_records as module
from workers.probe.clock import CLOCKS, DeviceClock
from workers.probe.recorder import Recorder
from workers.probe.step_records import DdpTimes


@dataclass
class LateDevice:
    """A device whose marks are reached only when told: the n-th mark is at n milliseconds."""

    marks: int = 0
    reached: int = 0
    waited: list[int] = field(default_factory=list)

    def clock(self) -> DeviceClock:
        return DeviceClock(
            mark=lambda index: self._mark(),
            ms=lambda begin, end: float(end - begin),
            reached=lambda mark: mark <= self.reached,
            wait=self._wait,
        )

    def _mark(self) -> int:
        self.marks += 1
        return self.marks

    def _wait(self, mark: int) -> None:
        self.waited.append(mark)
        self.reached = max(self.reached, mark)


def one_step(recorder: Recorder, rows: int) -> None:
    shard = recorder.watch_call(0, nn.Identity())
    with recorder.step("train", 0, 1.0):
        shard(torch.zeros(rows, 3))
        recorder.end_forward(rows)


def test_times_are_sent_when_the_device_has_reached_them(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sink = LateDevice(), Kept()
    monkeypatch.setitem(CLOCKS, "cpu", device.clock())
    recorder = Recorder(context_of(1, sink))
    one_step(recorder, 4)
    assert sink.of(Step) == []
    device.reached = device.marks
    one_step(recorder, 4)
    assert [step.forward_ms for step in sink.of(Step)] == [(1.0,)]
    assert device.waited == []


def test_finish_waits_for_what_a_device_still_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sink = LateDevice(), Kept()
    monkeypatch.setitem(CLOCKS, "cpu", device.clock())
    recorder = Recorder(context_of(1, sink))
    for _ in range(3):
        one_step(recorder, 4)
    recorder.finish()
    assert [step.step for step in sink.of(Step)] == [0, 1, 2]


def test_no_more_steps_than_the_bound_wait_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sink = LateDevice(), Kept()
    monkeypatch.setitem(CLOCKS, "cpu", device.clock())
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    recorder = Recorder(context_of(1, sink))
    for _ in range(5):
        one_step(recorder, 4)
    assert len(sink.of(Step)) == 3


def test_splits_beyond_the_bound_are_sent_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INTERNED", 2)
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    for rows in (1, 2, 3, 3, 1):
        one_step(recorder, rows)
    assert [(split.id, split.rows) for split in sink.of(BatchSplit)] == [(0, (1,)), (1, (2,)), (2, (3,)), (3, (3,))]
    assert [step.splits for step in sink.of(Step)] == [(0,), (1,), (2,), (3,), (0,)]


def test_two_forwards_in_one_step_give_two_splits_and_one_total() -> None:
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    shard = recorder.watch_call(0, nn.Identity())
    with recorder.step("train", 0, None):
        for rows in (4, 2):
            shard(torch.zeros(rows, 3))
            recorder.end_forward(rows)
    (step,) = sink.of(Step)
    assert step.splits == (0, 1)
    assert step.forward_ms[0] is not None


def test_rows_that_cannot_be_counted_are_null() -> None:
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    shard = recorder.watch_call(0, nn.Identity())
    with recorder.step("forward", 0, None):
        shard("no tensor")
        recorder.end_forward(None)
    (split,) = sink.of(BatchSplit)
    assert (split.rows, split.input_shapes, split.batch_rows) == ((None,), (None,), None)


def test_the_clock_of_ddp_starts_at_the_end_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    device, sink = LateDevice(reached=100), Kept()
    monkeypatch.setitem(CLOCKS, "cpu", device.clock())
    recorder = Recorder(context_of(1, sink))
    recorder.read_ddp_times = lambda: DdpTimes(computed_ms=1.25)
    shard = recorder.watch_call(0, nn.Identity())
    with recorder.step("train", 0, None):  # every mark is a millisecond after the one before
        shard(torch.zeros(4, 3))
        recorder.end_forward(4)
        recorder.backward(lambda: None)
    (step,) = sink.of(Step)
    assert (step.backward_ms, step.comm_ms, step.whole_backward_ms) == ((0.25,), 0.75, 1.0)
    assert step.optimizer_ms == 1.0


def test_a_step_that_fails_is_not_reported() -> None:
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    with pytest.raises(ZeroDivisionError), recorder.step("train", 0, None):
        _ = 1 / 0
    assert sink.of(Step) == []


def test_a_note_is_sent_once() -> None:
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    for _ in range(3):
        recorder.note("field", "reason")
    assert sink.records == [Note("field", "reason")]


def test_calls_outside_a_step_are_not_recorded() -> None:
    sink = Kept()
    recorder = Recorder(context_of(1, sink))
    recorder.watch_call(0, nn.Identity())(torch.zeros(1))
    recorder.end_forward(1)
    assert sink.records == []
