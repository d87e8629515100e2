"""Steps on the fast path make the same records as steps that the tracker follows in full."""

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from jobs.protocol.probe_records import Activity, Joining, Loaded
from jobs.protocol.records import FLOP_STEP, Began, MetricSample, Note, ProgramProgress, Step
from tests.process.workers.probe import test_cases as cases
from tests.support.probe_runs import Seen, backward, learn, watched, watched_ranks
from tests.unit.workers.probe.test_loops import network, train_and_evaluate, vectors
from tests.unit.workers.probe.test_wrappers import begin
from workers.probe import step_records
from workers.probe.steps.fast_path import FastPath, IdleChannel


def without_fast_path(program: Callable[..., None], *args: Any) -> None:
    FastPath.enable = lambda self, thread: None  # type: ignore[method-assign]
    program(*args)


def comparable(seen: Seen) -> list[Any]:
    """What was sent, without moments, and without what depends on them."""
    records: list[Any] = []
    for record in seen.records:
        if isinstance(record, Step):
            times = (record.data_wait_ms, *record.forward_ms, *record.backward_ms, record.comm_ms)
            records.append((record.step, record.phase, record.splits, [time is None for time in times]))
        elif isinstance(record, MetricSample) and record.name != "rows_per_second":
            records.append((record.name, record.step, record.value))
        elif isinstance(record, Loaded):
            records.append(msgspec.to_builtins(msgspec.structs.replace(record, began_at=0.0, seconds=0.0)))
        elif not isinstance(record, Began | Joining | Activity | MetricSample | ProgramProgress):
            records.append(msgspec.to_builtins(record))
    notes = [record for record in records if record in [msgspec.to_builtins(note) for note in seen.of(Note)]]
    return sorted(map(str, notes)) + [record for record in records if record not in notes]


class Growing(nn.Module):
    """Returns another shape from some call on, and has a bad day."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(5, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 9:
            raise ValueError("the program's own")
        return self.inner(x) if self.calls % 5 else self.inner(x).sum(1)  # type: ignore[no-any-return]


def with_surprises() -> None:
    net, other = Growing(), network()
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    for number, (x, _) in enumerate(DataLoader(vectors(400), 16)):
        try:
            loss = net(x).sum()
        except ValueError:
            continue
        if number == 11:
            loss = loss + other(x).sum()
        if number == 13:
            (loss * 2).backward(retain_graph=True)
        if number == 15:
            with torch.no_grad():
                net(x)
        learn(optimizer, loss)
        if number == 17:
            optimizer.step()
        if number == 19:
            optimizer.param_groups[0]["lr"] = 0.05


def without_a_loader() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(24):
        learn(optimizer, net(torch.ones(4 if number % 7 else 5, 5)).sum())


def half_without_a_loader() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, _ in DataLoader(vectors(160), 16, shuffle=True):
        learn(optimizer, net(x).sum())
    for _ in range(8):
        learn(optimizer, net(torch.ones(16, 5)).sum())
        learn(optimizer, net(torch.ones(3, 5)).sum())


def evaluating_with_gradients() -> None:
    """Whether a forward in eval mode trains is known only when a backward follows, or none does."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(40):
        net.train()
        learn(optimizer, net(torch.ones(6, 5)).sum())
        net.eval()
        outputs: Any = net(torch.ones(4, 5))
        if number >= 12 and number % 3:
            learn(optimizer, outputs.sum())


def with_two_forwards_after_evaluation() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(24):
        if number % 4 == 3:
            net.eval()(torch.ones(4, 5))
            net.train()
        outputs: Any = net(torch.ones(4, 5))
        if number % 4 == 3:
            outputs = outputs + net(torch.ones(4, 5))
        learn(optimizer, outputs.sum())


def with_a_second_thread() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(12):
        learn(optimizer, net(torch.ones(4, 5)).sum())
        if number == 5:
            other = threading.Thread(target=lambda: network()(torch.ones(3, 5)).sum().backward())
            other.start()
            other.join()


def with_a_second_thread_within_a_step() -> None:
    """Its forward and its backward come when a backward of the first is expected."""
    net, other = network(), network()
    optimizer = torch.optim.SGD([*net.parameters(), *other.parameters()], 0.1)
    for number in range(12):
        loss: Any = net(torch.ones(4, 5)).sum()
        if number == 6:
            thread = threading.Thread(target=lambda: backward(other(torch.ones(3, 5)).sum()))
            thread.start()
            thread.join()
        learn(optimizer, loss)


class Surprising(nn.Module):
    """Does something else in the midst of a forward, now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other, self.calls = nn.Linear(5, 2), nn.Linear(5, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 7 == 5:
            with torch.enable_grad():
                outputs: Any = self.other(x)
                outputs.sum().backward()
        if self.calls == 15:
            next(iter(DataLoader(vectors(6), 6)))
        if self.calls == 23:
            raise ValueError("the program's own, off the fast path")
        return self.inner(x)  # type: ignore[no-any-return]


def with_something_within() -> None:
    net = Surprising()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number in range(36):
        with contextlib.suppress(ValueError):
            learn(optimizer, net(torch.ones(4, 5)).sum())
        if number % 9 == 8:
            with torch.no_grad():
                net(torch.ones(4, 5))


def with_own_batches() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        for x, _ in DataLoader(vectors(40), batch_sampler=[[0, 1, 2], [3, 4, 5], [6]] * 4):
            learn(optimizer, net(x).sum())


PROGRAMS = [
    evaluating_with_gradients,
    with_two_forwards_after_evaluation,
    with_a_second_thread,
    with_own_batches,
    with_something_within,
    train_and_evaluate,
    with_surprises,
    without_a_loader,
    half_without_a_loader,
    cases.accumulating,
    cases.generative,
    cases.with_a_closure,
    cases.with_nested_optimizers,
    cases.failing_in_a_step,
    cases.mixed_precision,
    cases.evaluating_in_many_ways,
    cases.training_in_eval_mode,
    cases.sequence_first,
    cases.packed,
    cases.keywords_only,
    cases.cut_by_hand,
    cases.by_its_methods,
    cases.leaving,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_fast_path_makes_the_same_records(program: Callable[..., None]) -> None:
    seen = watched(program)
    assert comparable(seen) == comparable(watched(without_fast_path, program))
    assert "turned itself off" not in seen.notes()


def test_what_a_second_thread_does_within_a_step_belongs_to_it() -> None:
    """In which order is not said: they are two threads."""
    program = with_a_second_thread_within_a_step
    seen, other = watched(program), watched(without_fast_path, program)
    assert [sorted(step.splits) for step in seen.steps()] == [sorted(step.splits) for step in other.steps()]
    assert len(seen.steps()[6].splits) == 2
    assert seen.of(Activity)[-1] == other.of(Activity)[-1]


def in_parallel(store: str, rank: int) -> None:
    """Thirty steps of DistributedDataParallel, some of two batches, with evaluation in between. None is called quick:
    what is asked would depend on the machine."""
    step_records.DDP_QUICK_SECONDS = 0.0
    begin(store, rank)
    net = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, _) in enumerate(DataLoader(vectors(36 * 8), 8)):
        if number in (9, 20, 21):
            with net.no_sync():
                backward(net(x).sum())
            continue
        learn(optimizer, net(x).sum())
        if number % 12 == 11:
            with torch.no_grad():
                net(x)
                net.module(x)


def without_fast_path_in_parallel(store: str, rank: int) -> None:
    without_fast_path(in_parallel, store, rank)


def test_the_fast_path_makes_the_same_records_under_ddp() -> None:
    for fast, other in zip(watched_ranks(in_parallel), watched_ranks(without_fast_path_in_parallel), strict=True):
        assert comparable(fast) == comparable(other)
        assert any(step.comm_ms is not None for step in fast.steps()[10:])


def test_quick_reductions_are_measured_seldom_and_slow_ones_every_tenth() -> None:
    reductions, now = step_records.DdpReductions(weakref.ref(network())), 0.0
    measured = []
    for number, seconds in enumerate([0.001] * 250 + [0.1] * 100, 1):
        reductions.count, now = number, now + seconds
        if reductions.is_measured:
            measured.append(number)
            reductions.adjust_sampling(now)
    assert measured == [*range(1, 11), 100, 200, 300, 310, 320, 330, 340, 350]


def counting(program: Callable[..., None], *args: Any) -> int:
    """The number of steps that take the fast path."""
    noted: list[Any] = []
    note = FastPath._note_step

    def counted(self: FastPath, *step: Any) -> None:
        noted.append(step)
        note(self, *step)

    FastPath._note_step = counted  # type: ignore[method-assign, assignment]
    program(*args)
    return len(noted)


def counting_in_parallel(store: str, rank: int) -> int:
    return counting(in_parallel, store, rank)


def test_nearly_all_steps_of_a_plain_loop_take_the_fast_path() -> None:
    """Two epochs of four batches and two of evaluation: each kind of batch is looked at once."""
    assert watched(counting, train_and_evaluate).result >= 12 - 4 - 2


def test_most_steps_under_ddp_take_the_fast_path() -> None:
    for seen in watched_ranks(counting_in_parallel):
        assert seen.result >= 24


def test_no_step_takes_the_fast_path_once_a_second_thread_calls_a_model() -> None:
    assert watched(counting, with_a_second_thread).result <= 5


def test_times_of_steps_on_the_fast_path_are_those_of_the_clock() -> None:
    steps = watched(without_a_loader).steps()
    assert len(steps) == 24
    for step, later in itertools.pairwise(steps):
        forward, back = step.forward_ms[0], step.backward_ms[0]
        if step.step == FLOP_STEP:
            assert (forward, back) == (None, None)
            continue
        assert forward is not None
        assert back is not None
        assert step.step_ms >= forward + back > 0
        assert step.at <= later.at


def stopped_early() -> None:
    IdleChannel.is_idle = False  # as a sink that is busy: steps wait on the tape
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, (x, _) in enumerate(DataLoader(vectors(160), 16)):
        learn(optimizer, net(x).sum())
        if number == 6:
            break


def test_a_pass_that_is_left_has_the_batches_that_were_on_the_tape() -> None:
    (loaded,) = watched(stopped_early).of(Loaded)
    assert (loaded.batches, loaded.rows, loaded.complete) == (7, 112, False)


def with_lasting_workers() -> None:
    IdleChannel.is_idle = False
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = DataLoader(vectors(64), 16, num_workers=1, persistent_workers=True)
    for _ in range(3):
        for x, _ in loader:
            learn(optimizer, net(x).sum())


def test_each_pass_of_persistent_workers_is_reported() -> None:
    passes = watched(with_lasting_workers).of(Loaded)
    assert [(each.batches, each.rows, each.complete) for each in passes] == [(4, 64, True)] * 3
    assert len({each.digest for each in passes}) == 1


def losses() -> list[float]:
    torch.manual_seed(0)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = []
    for x, _ in DataLoader(vectors(160), 16):
        loss: Any = net(x).square().mean()
        learn(optimizer, loss)
        found.append(float(loss))
    for _ in range(4):
        with torch.no_grad():
            net(torch.ones(3, 5))
    net(torch.ones(3, 5))
    return found


def failing_losses(name: str) -> list[float]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("the probe's own")

    setattr(FastPath, name, fail)
    return losses()


@pytest.mark.parametrize(
    "name", ["announce_step", "end_train_step", "end_eval_step", "_note_sampled_step", "_note_step", "flush", "leave"]
)
def test_a_fault_on_the_fast_path_is_a_note_and_nothing_else(name: str) -> None:
    seen = watched(failing_losses, name)
    assert seen.result == watched(losses).result
    notes = [note for note in seen.of(Note) if "turned itself off" in note.reason]
    assert len(notes) == 1
    assert "the probe's own" in notes[0].reason
