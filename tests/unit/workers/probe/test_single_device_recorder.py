"""What the recorder of a single device on the host sends."""

import time

import pytest
import torch
from torch import nn

from jobs.protocol.records import MAX_INTERNED, BatchSplit, Step
from tests.support.training_runs import Kept, context_of
from workers.probe import step_records as module
from workers.probe.recorder import Recorder, SingleDeviceRecorder
from workers.probe.step_records import DdpTimes


def watching(model: nn.Module, recorder: Recorder) -> nn.Module:
    recorder.watch_module(model, 0, is_whole=True)
    return model


def train(kind: type[Recorder], batches: list[int]) -> Kept:
    """Steps of batches of so many rows, with an evaluation after each second one."""
    sink = Kept()
    recorder = kind(context_of(1, sink), times_whole_backward=True)
    model = watching(nn.Linear(3, 2), recorder)
    for number, rows in enumerate(batches):
        with recorder.step("train", 0, 1.5):
            loss = model(torch.ones(rows, 3)).sum()
            recorder.backward(loss.backward)
        if number % 2:
            with recorder.step("eval", 0, None):
                model(torch.ones(rows, 3))
    model(torch.ones(7, 3))  # outside
    recorder.finish()
    return sink


def test_it_tells_the_same_as_the_recorder_of_many_devices() -> None:
    one, many = train(SingleDeviceRecorder, [4, 4, 2, 4, 4]), train(Recorder, [4, 4, 2, 4, 4])
    assert one.of(BatchSplit) == many.of(BatchSplit)
    same = [
        [(s.step, s.phase, s.splits, s.data_wait_ms, s.comm_ms, [ms is None for ms in s.backward_ms]) for s in steps]
        for steps in (one.of(Step), many.of(Step))
    ]
    assert same[0] == same[1]
    for step in one.of(Step):
        assert step.forward_ms[0] is not None
        assert step.step_ms >= step.forward_ms[0] + (step.backward_ms[0] or 0.0) > 0


def test_shapes_of_every_forward_are_read_whatever_the_one_before_had() -> None:
    splits = train(SingleDeviceRecorder, [4, 2, 4]).of(BatchSplit)
    assert [(split.phase, split.rows, split.input_shapes) for split in splits] == [
        ("train", (4,), ((4, 3),)),
        ("train", (2,), ((2, 3),)),
        ("eval", (2,), ((2, 3),)),
    ]
    assert all(type(split.input_shapes[0]) is tuple for split in splits)


def test_several_forwards_of_a_step_have_a_split_each() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    model = watching(nn.Identity(), recorder)
    with recorder.step("train", 0, None):
        for rows in (4, 2, 4):
            model(torch.zeros(rows, 3))
    assert [step.splits for step in sink.of(Step)] == [(0, 1, 0)]


def test_splits_beyond_the_bound_are_sent_for_every_step_that_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INTERNED", 1)
    monkeypatch.setattr("workers.probe.recorder.MAX_INTERNED", 1)
    assert MAX_INTERNED > 1
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    model = watching(nn.Identity(), recorder)
    for rows in (1, 2, 2, 2):
        with recorder.step("train", 0, None):
            model(torch.zeros(rows, 3))
    assert [split.id for split in sink.of(BatchSplit)] == [0, 1, 2, 3]
    assert [step.splits for step in sink.of(Step)] == [(0,), (1,), (2,), (3,)]


def test_the_times_of_ddp_are_those_of_the_step_and_of_batches_whose_gradients_stay() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    model = watching(nn.Linear(3, 2), recorder)
    recorder.read_ddp_times = lambda: DdpTimes(computed_ms=35.0)

    def slow_backward() -> None:
        loss.backward()
        time.sleep(0.04)

    with recorder.step("train", 0, None):
        loss = model(torch.ones(4, 3)).sum()
        recorder.backward(lambda: time.sleep(0.02), alone=True)
        loss = model(torch.ones(4, 3)).sum()
        time.sleep(0.03)  # the loss; DistributedDataParallel takes it for backward
        recorder.backward(slow_backward)
    (step,) = sink.of(Step)
    (backward_ms,) = step.backward_ms
    assert backward_ms is not None
    assert step.comm_ms is not None
    assert step.whole_backward_ms is not None
    assert step.whole_backward_ms == pytest.approx(backward_ms + step.comm_ms)
    assert 20 <= backward_ms <= step.whole_backward_ms - 35  # no more than 5 ms of the second one was computed


def test_a_step_without_the_times_of_ddp_has_those_of_the_calls_alone() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    with recorder.step("train", 0, None):
        recorder.backward(lambda: None, alone=True)
        recorder.backward(lambda: time.sleep(0.01))
    (step,) = sink.of(Step)
    assert (step.backward_ms, step.comm_ms) == ((None,), None)
    assert step.whole_backward_ms is not None
    assert step.whole_backward_ms >= 10


def test_the_parts_of_a_cycle_add_up_to_it() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink), times_whole_backward=True)
    model = watching(nn.Linear(3, 2), recorder)
    for waited_ms in (None, 20.0):
        time.sleep(0.02)  # for the batch
        with recorder.step("train", 0, waited_ms):
            recorder.backward(model(torch.ones(4, 3)).sum().backward)
            time.sleep(0.01)  # the optimizer
    first, second = sink.of(Step)
    assert first.cycle_ms is None
    assert second.optimizer_ms is not None
    assert second.optimizer_ms >= 10
    parts = [second.data_wait_ms, *second.forward_ms, *second.backward_ms, second.optimizer_ms]
    assert second.cycle_ms is not None
    assert 30 <= sum(part or 0.0 for part in parts) <= second.cycle_ms


def test_a_step_that_fails_is_not_reported() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    with pytest.raises(ZeroDivisionError), recorder.step("train", 0, None):
        _ = 1 / 0
    assert sink.of(Step) == []
