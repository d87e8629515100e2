"""The tracker on devices that finish late, as GPUs do. Nothing of torch is wrapped here."""

from typing import Any

import pytest
import torch
from torch import nn

from jobs.protocol.records import DeviceInfo, MetricSample, Step
from tests.support.training_runs import Kept
from tests.unit.workers.probe.test_recorder import LateDevice
from workers.probe.clock import CLOCKS
from workers.probe.step_profiler import StepProfiler
from workers.probe.tracker import Tracker
from workers.probe.types import ThreadStates, TorchQueries
from workers.runtime.context import RankContext, RankDevice


def tracker_on_cuda(late: LateDevice, monkeypatch: pytest.MonkeyPatch) -> tuple[Tracker, Kept]:
    monkeypatch.setitem(CLOCKS, "cuda", late.clock())
    sink, asked = Kept(), TorchQueries()
    asked.is_cuda_ready = lambda: True
    asked.device_properties = lambda index: ("a GPU", 80)
    asked.peak_memory = lambda index: 7
    context = RankContext(0, 1, (RankDevice(0, "cuda", "GPU-0"),), 1, 1, sink)
    return Tracker(context, asked, ThreadStates(), StepProfiler(context)), sink


def one_step(tracker: Tracker, net: nn.Module, optimizer: Any) -> None:
    x = torch.ones(4, 5)
    forward = tracker.begin_forward(net, (x,), {})
    assert forward is not None
    output = net(x)
    tracker.end_forward(forward, output)
    tracker.end_backward(tracker.begin_backward())
    tracker.begin_optimizer(optimizer)
    tracker.end_optimizer(optimizer)


def test_steps_are_sent_when_the_device_has_reached_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateDevice()
    tracker, sink = tracker_on_cuda(late, monkeypatch)
    net = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    one_step(tracker, net, optimizer)
    assert sink.of(Step) == []
    late.reached = late.marks
    one_step(tracker, net, optimizer)
    assert [(step.forward_ms, step.backward_ms, step.memory_peak_bytes) for step in sink.of(Step)] == [
        ((1.0,), (1.0,), (7,))
    ]
    assert late.waited == []
    tracker.finish()
    assert [step.step for step in sink.of(Step)] == [0, 1]


def test_a_device_is_described_once_the_program_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, sink = tracker_on_cuda(LateDevice(), monkeypatch)
    ready = [False]
    tracker.torch.is_cuda_ready = lambda: ready[0]
    net = nn.Linear(5, 2)
    first = tracker.begin_forward(net, (torch.ones(1, 5),), {})
    ready[0] = True  # within its first forward
    assert first is not None
    tracker.end_forward(first, None)
    assert sink.of(DeviceInfo) == []
    one_step(tracker, net, torch.optim.SGD(net.parameters(), 0.1))
    tracker.finish()
    assert sink.of(DeviceInfo) == [DeviceInfo(0, "a GPU", 80)]
    assert [len(step.forward_ms) for step in sink.of(Step)] == [1, 1]


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateDevice()
    tracker, _ = tracker_on_cuda(late, monkeypatch)
    net = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    one_step(tracker, net, optimizer)
    marks = late.marks
    tracker.torch.is_capturing = lambda: True
    assert tracker.begin_forward(net, (torch.ones(1, 5),), {}) is None
    assert tracker.begin_backward() is None
    tracker.begin_optimizer(optimizer)
    tracker.end_optimizer(optimizer)
    assert (late.marks, tracker.reporter.steps) == (marks, 1)


def test_the_learning_rate_is_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, sink = tracker_on_cuda(LateDevice(), monkeypatch)
    net = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.25)
    for _ in range(12):
        one_step(tracker, net, optimizer)
    rates = [metric for metric in sink.of(MetricSample) if metric.name == "learning_rate"]
    assert [(metric.step, metric.value) for metric in rates] == [(step, 0.25) for step in [*range(10), 10]]
