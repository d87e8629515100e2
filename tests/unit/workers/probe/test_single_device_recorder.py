"""What the recorder of a single device on the host sends."""

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
    recorder.read_ddp_times = lambda: DdpTimes(backward_ms=1000.0, comm_ms=5.0)
    for alone in (True, False):
        with recorder.step("train", 0, None):
            loss = model(torch.ones(4, 3)).sum()
            recorder.backward(loss.backward, alone=alone)
    first, second = sink.of(Step)
    assert first.backward_ms[0] is not None
    assert first.backward_ms[0] > 1000
    assert (second.backward_ms, second.comm_ms) == ((1000.0,), 5.0)


def test_a_step_without_the_times_of_ddp_has_none() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    with recorder.step("train", 0, None):
        recorder.backward(lambda: None, alone=True)
    assert [step.backward_ms for step in sink.of(Step)] == [(None,)]


def test_a_step_that_fails_is_not_reported() -> None:
    sink = Kept()
    recorder = SingleDeviceRecorder(context_of(1, sink))
    with pytest.raises(ZeroDivisionError), recorder.step("train", 0, None):
        _ = 1 / 0
    assert sink.of(Step) == []
