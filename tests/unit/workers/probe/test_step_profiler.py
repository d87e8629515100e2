"""Traces of a few steps, recorded in this process."""

import gzip
import json
import time
from typing import Any

import pytest
import torch

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import ProfileBegin, ProfileEnd, ProfilePart
from tests.support.training_runs import FORWARD, VECTORS, Kept, context_of, run_spec, spec_of
from workers.probe import step_profiler
from workers.probe.step_profiler import OWN_PROFILER, StepProfiler


def profiles_of(records: list[AnyRecord]) -> list[AnyRecord]:
    return [one for one in records if isinstance(one, ProfileBegin | ProfilePart | ProfileEnd)]


def trace_of(records: list[AnyRecord]) -> list[dict[str, Any]]:
    """The events of the one trace that was sent."""
    packed = b"".join(one.data for one in records if isinstance(one, ProfilePart))
    events: list[dict[str, Any]] = json.loads(gzip.decompress(packed))["traceEvents"]
    return events


def test_ranks_of_recipes_record_the_steps_that_are_asked_for() -> None:
    program = VECTORS | {"epochs": 5}  # of four steps
    _, sink = run_spec(spec_of(program), profile_request=bytes([7, 3]))
    begin, *_, end = profiles_of(sink.records)
    assert begin == ProfileBegin(7)
    assert isinstance(end, ProfileEnd)
    assert (end.number, end.steps, end.error) == (7, 3, "")
    assert sum(event["name"] == "Optimizer.step#SGD.step" for event in trace_of(sink.records)) == 3
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def test_threads_of_data_parallel_are_in_the_trace() -> None:
    _, sink = run_spec(spec_of(FORWARD, devices=2, strategy="dp"), profile_request=bytes([1, 2]))
    assert len({event["tid"] for event in trace_of(sink.records) if event["name"] == "aten::linear"}) > 1


def test_a_program_that_ends_sends_the_steps_that_it_had() -> None:
    _, sink = run_spec(spec_of(VECTORS), profile_request=bytes([1, 100]))
    end = profiles_of(sink.records)[-1]
    assert isinstance(end, ProfileEnd)
    assert (end.steps, end.error) == (3, "")  # of four: it begins at the end of the first


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    _, sink = run_spec(spec_of(VECTORS))
    assert profiles_of(sink.records) == []


def ready(sink: Kept, steps: int) -> StepProfiler:
    return StepProfiler(context_of(1, sink, profile_request=bytes([1, steps])))


def test_a_program_that_profiles_itself_is_left_alone() -> None:
    sink = Kept()
    profiler = ready(sink, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        profiler.on_step()
        torch.ones(3).sum()
    assert profiles_of(sink.records) == [ProfileEnd(1, 0, 0.0, OWN_PROFILER)]
    assert any(event.key == "aten::sum" for event in own.key_averages())
    assert profiler.seen == 1


@pytest.mark.parametrize("limit", ["RECORD_SECONDS", "MAX_GROWTH_BYTES"])
def test_a_recording_is_bounded_in_time_and_memory(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(step_profiler, limit, -1_000_000_000_000)
    sink = Kept()
    profiler = ready(sink, 100)
    profiler.on_step()
    profiler.on_step()
    profiler.finish()
    end = profiles_of(sink.records)[-1]
    assert isinstance(end, ProfileEnd)
    assert (end.steps, end.error) == (1, "")


def test_a_trace_is_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "MAX_TRACE_BYTES", 10)
    sink = Kept()
    profiler = ready(sink, 1)
    profiler.on_step()
    torch.ones(3).sum()
    profiler.on_step()
    profiler.finish()
    end = profiles_of(sink.records)[-1]
    assert isinstance(end, ProfileEnd)
    assert "larger than 10 bytes" in end.error


def test_a_request_that_is_taken_back_is_none() -> None:
    sink = Kept()
    profiler = StepProfiler(context_of(1, sink, profile_request=bytes([0, 0])))
    profiler.seen = 3
    profiler.on_step()
    assert (profiler.seen, profiles_of(sink.records)) == (0, [])


def test_a_step_without_a_request_costs_nothing_to_speak_of() -> None:
    profiler = StepProfiler(context_of(1, Kept()))
    began = time.perf_counter()
    for _ in range(10_000):
        if profiler.request[0] != profiler.seen:
            profiler.on_step()
    assert (time.perf_counter() - began) / 10_000 < 5e-6
