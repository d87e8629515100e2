"""The plan's arithmetic, held against torch itself."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from jobs.model.spec import JobSpec
from jobs.splits.plan import (
    Prediction,
    accumulate_batches,
    chunk_rows,
    epoch_batches,
    epoch_steps,
    evaluation_batches,
    loader_batches,
    predict_splits,
    sampler_rows,
    strided_rows,
)
from shardyard.contract.report import Pattern
from tests.support.samples.specs import make_spec

few_rows = st.integers(min_value=1, max_value=150)
few_devices = st.integers(min_value=1, max_value=9)
sizes = st.integers(min_value=1, max_value=40)


def steps_of(spec: JobSpec, rows: int) -> list[tuple[int, ...]]:
    """The rows of each device, step by step, over one epoch."""
    return [shards for shards, count in epoch_steps(spec, rows) for _ in range(count)]


def batched(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def counted(patterns: Sequence[Pattern]) -> dict[tuple[str, tuple[int | None, ...] | None], int | None]:
    return {(pattern.phase, pattern.rows): pattern.steps for pattern in patterns}


# -- against torch ---------------------------------------------------------------------------------


@given(few_rows, few_devices)
def test_a_batch_is_divided_as_torch_chunk_divides_it(rows: int, devices: int) -> None:
    shards = [len(shard) for shard in torch.arange(rows).chunk(devices)]

    assert chunk_rows(rows, devices) == tuple(shards + [0] * (devices - len(shards)))


def test_no_rows_leave_every_device_idle() -> None:
    assert chunk_rows(0, 3) == (0, 0, 0)


@pytest.mark.parametrize(("rows", "devices"), [(-1, 2), (4, 0)])
def test_a_division_that_makes_no_sense_is_refused(rows: int, devices: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows among {devices} devices"):
        chunk_rows(rows, devices)


@given(few_rows, few_devices, st.booleans())
def test_every_rank_gets_the_rows_that_the_distributed_sampler_gives_it(rows: int, ranks: int, drop_last: bool) -> None:
    data = TensorDataset(torch.arange(rows))
    lengths = {
        len(list(DistributedSampler(data, num_replicas=ranks, rank=rank, drop_last=drop_last))) for rank in range(ranks)
    }

    assert lengths == {sampler_rows(rows, ranks, drop_last)}


@given(few_rows, sizes, st.booleans())
def test_batches_are_those_of_a_data_loader(rows: int, batch_size: int, drop_last: bool) -> None:
    loader = DataLoader(TensorDataset(torch.arange(rows)), batch_size=batch_size, drop_last=drop_last)
    yielded = [len(batch) for (batch,) in loader]

    assert [size for size, count in loader_batches(rows, batch_size, drop_last) for _ in range(count)] == yielded


@given(few_rows, few_devices, sizes, st.booleans())
def test_an_epoch_under_dp_is_what_a_loader_and_chunk_make_of_it(
    rows: int, devices: int, batch_size: int, drop_last: bool
) -> None:
    loader = DataLoader(TensorDataset(torch.arange(rows)), batch_size=batch_size, drop_last=drop_last)
    expected = []
    for (batch,) in loader:
        shards = [len(shard) for shard in batch.chunk(devices)]
        expected.append(tuple(shards + [0] * (devices - len(shards))))

    assert steps_of(make_spec("dp", devices, batch_size, drop_last=drop_last), rows) == expected


@pytest.mark.parametrize(("nodes", "devices"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@given(few_rows, sizes, st.booleans())
def test_an_epoch_over_nodes_is_what_the_samplers_of_all_their_ranks_make_of_it(
    nodes: int, devices: int, strategy: str, rows: int, batch_size: int, drop_last: bool
) -> None:
    data, ranks = TensorDataset(torch.arange(rows)), nodes * devices
    samplers: list[DistributedSampler[Any]] = [
        DistributedSampler(data, num_replicas=ranks, rank=rank, drop_last=drop_last) for rank in range(ranks)
    ]
    loaders = [DataLoader(data, batch_size, sampler=sampler, drop_last=drop_last) for sampler in samplers]
    per_rank = [[len(batch) for (batch,) in loader] for loader in loaders]

    spec = make_spec(strategy, devices, batch_size, drop_last=drop_last, nodes=nodes)
    assert steps_of(spec, rows) == list(zip(*per_rank, strict=True))


@pytest.mark.parametrize(("nodes", "devices"), [(2, 3), (3, 2)])
def test_a_run_over_nodes_is_planned_as_one_over_as_many_devices_of_one_node(nodes: int, devices: int) -> None:
    evaluate = {"batch_size": 7, "every_epochs": 1}
    spread = make_spec("ddp", devices, 10, nodes=nodes, evaluate=evaluate, accumulate_steps=2, epochs=3)
    dense = make_spec("ddp", 6, 10, evaluate=evaluate, accumulate_steps=2, epochs=3)
    assert predict_splits(spread, 100, 50) == predict_splits(dense, 100, 50)
    assert predict_splits(spread, None) == predict_splits(dense, None)


@given(few_rows, few_devices, sizes, st.booleans())
def test_an_epoch_under_ddp_is_what_a_sampler_and_a_loader_per_rank_make_of_it(
    rows: int, ranks: int, batch_size: int, drop_last: bool
) -> None:
    data = TensorDataset(torch.arange(rows))
    per_rank = []
    for rank in range(ranks):
        sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=ranks, rank=rank, drop_last=drop_last)
        loader = DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=drop_last)
        per_rank.append([len(batch) for (batch,) in loader])

    assert steps_of(make_spec("ddp", ranks, batch_size, drop_last=drop_last), rows) == list(zip(*per_rank, strict=True))


@given(few_rows, few_devices, sizes)
def test_evaluation_under_ddp_reads_every_row_exactly_once(rows: int, ranks: int, batch_size: int) -> None:
    spec = make_spec("ddp", ranks)
    shards = [list(range(rows))[rank::ranks] for rank in range(ranks)]
    loaders = [[len(part) for part in batched(shard, batch_size)] for shard in shards]
    longest = max(len(loader) for loader in loaders)
    expected = [tuple(loader[i] if i < len(loader) else 0 for loader in loaders) for i in range(longest)]

    planned = [shards for shards, count in evaluation_batches(spec, rows, batch_size) for _ in range(count)]

    assert planned == expected
    assert strided_rows(rows, ranks) == tuple(len(shard) for shard in shards)


@given(
    rows=few_rows,
    devices=few_devices,
    batch_size=sizes,
    strategy=st.sampled_from(["single", "dp", "ddp", "fsdp"]),
    accumulate=st.integers(1, 7),
    drop_last=st.booleans(),
)
def test_a_step_adds_up_the_batches_that_it_accumulates_and_the_last_takes_what_is_left(
    rows: int, devices: int, batch_size: int, strategy: str, accumulate: int, drop_last: bool
) -> None:
    devices = 1 if strategy == "single" else devices
    spec = make_spec(strategy, devices, batch_size, drop_last=drop_last, accumulate_steps=accumulate)
    alone = [shards for shards, count in epoch_batches(spec, rows) for _ in range(count)]
    groups = [alone[start : start + accumulate] for start in range(0, len(alone), accumulate)]

    assert steps_of(spec, rows) == [tuple(map(sum, zip(*group, strict=True))) for group in groups]


@given(
    counts=st.lists(st.integers(1, 20), max_size=5),
    size=st.integers(1, 9),
)
def test_any_runs_of_batches_are_grouped_in_order(counts: list[int], size: int) -> None:
    runs = [((10**place, 1), count) for place, count in enumerate(counts)]
    alone = [rows for rows, count in runs for _ in range(count)]
    expected = [tuple(map(sum, zip(*alone[i : i + size], strict=True))) for i in range(0, len(alone), size)]

    assert [rows for rows, count in accumulate_batches(runs, size) for _ in range(count)] == expected


# -- known tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "full", "last"),
    [
        (1, (30,), (10,)),
        (2, (15, 15), (5, 5)),
        (3, (10, 10, 10), (4, 4, 2)),
        (8, (4, 4, 4, 4, 4, 4, 4, 2), (2, 2, 2, 2, 2, 0, 0, 0)),
    ],
)
def test_a_hundred_rows_in_batches_of_thirty(devices: int, full: tuple[int, ...], last: tuple[int, ...]) -> None:
    assert steps_of(make_spec("dp", devices, 30), 100) == [full, full, full, last]


def test_thirty_rows_in_one_batch_on_two_devices() -> None:
    assert steps_of(make_spec("dp", 2, 30), 30) == [(15, 15)]


def test_ninety_rows_on_four_ranks_are_padded_to_ninety_two() -> None:
    (pattern,) = predict_splits(make_spec("ddp", 4, 30), 90).run

    assert (pattern.rows, pattern.batch_rows, pattern.steps) == ((23, 23, 23, 23), 92, 1)


# -- whole jobs ------------------------------------------------------------------------------------


def test_a_pattern_says_where_in_the_run_it_occurs() -> None:
    prediction = predict_splits(make_spec("dp", 3, 30, epochs=5), 100)

    full, last = prediction.run
    assert (full.steps, full.first_step, full.last_step) == (15, 0, 18)
    assert (last.steps, last.first_step, last.last_step) == (5, 3, 19)
    assert counted(prediction.epoch) == {("train", (10, 10, 10)): 3, ("train", (4, 4, 2)): 1}


@given(
    rows=few_rows,
    devices=few_devices,
    batch_size=sizes,
    strategy=st.sampled_from(["dp", "ddp"]),
    epochs=st.integers(1, 5),
    max_steps=st.none() | st.integers(1, 60),
    every=st.integers(1, 3),
    eval_rows=few_rows,
)
def test_a_run_is_what_a_loop_over_epochs_would_do(
    rows: int,
    devices: int,
    batch_size: int,
    strategy: str,
    epochs: int,
    max_steps: int | None,
    every: int,
    eval_rows: int,
) -> None:
    evaluate = {"batch_size": 7, "every_epochs": every}
    spec = make_spec(strategy, devices, batch_size, epochs=epochs, max_steps=max_steps, evaluate=evaluate)
    seen: list[tuple[str, tuple[int, ...]]] = []
    positions: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    counts: Counter[str] = Counter()

    def step(phase: str, shards: tuple[int, ...]) -> None:
        seen.append((phase, shards))
        positions.setdefault((phase, shards), []).append(counts[phase])
        counts[phase] += 1

    for epoch in range(epochs):
        for shards in steps_of(spec, rows):
            if max_steps is None or counts["train"] < max_steps:
                step("train", shards)
        if (epoch + 1) % every == 0:
            for shards, times in evaluation_batches(spec, eval_rows, 7):
                for _ in range(times):
                    step("eval", shards)
        if max_steps is not None and counts["train"] >= max_steps:
            break

    prediction = predict_splits(spec, rows, eval_rows)

    assert counted(prediction.run) == dict(Counter(seen))
    for pattern in prediction.run:
        assert pattern.rows is not None
        where = positions[pattern.phase, tuple(count or 0 for count in pattern.rows)]
        assert (pattern.first_step, pattern.last_step) == (where[0], where[-1])


def test_a_data_set_of_unknown_size_gives_one_full_batch_and_says_why() -> None:
    prediction = predict_splits(make_spec("dp", 4, 30), None)

    (pattern,) = prediction.run
    assert (pattern.batch_rows, pattern.rows, pattern.steps) == (30, (8, 8, 8, 6), None)
    assert "is known only when it is loaded" in prediction.notes["rows"]
    assert prediction.notes["patterns.steps"].startswith("program.data")


def test_a_step_of_unknown_data_has_all_the_batches_that_it_accumulates() -> None:
    (pattern,) = predict_splits(make_spec("dp", 4, 30, accumulate_steps=3), None).run

    assert (pattern.batch_rows, pattern.rows) == (90, (24, 24, 24, 18))


def test_an_evaluation_set_of_unknown_size_leaves_the_training_plan_whole() -> None:
    prediction = predict_splits(make_spec("ddp", 2, 10, evaluate={"batch_size": 16}), 40, None)

    assert counted(prediction.run) == {("train", (10, 10)): 2, ("eval", (16, 16)): None}
    assert prediction.notes["patterns.steps"].startswith("program.evaluate.data")


def test_evaluations_are_not_counted_when_an_unknown_number_of_steps_decides_them() -> None:
    prediction = predict_splits(make_spec("dp", 2, 10, epochs=9, max_steps=50, evaluate={"batch_size": 16}), None, 20)

    assert counted(prediction.run)["eval", (8, 8)] is None
    assert counted(prediction.epoch)["eval", (8, 8)] == 1


def test_an_evaluation_that_is_never_due_is_in_no_run() -> None:
    spec = make_spec("dp", 2, 10, epochs=2, evaluate={"batch_size": 5, "every_epochs": 3})

    prediction = predict_splits(spec, 20, 20)

    assert {pattern.phase for pattern in prediction.run} == {"train"}
    assert {pattern.phase for pattern in prediction.epoch} == {"train", "eval"}


def unknown_rows(prediction: Prediction) -> Pattern:
    (pattern,) = prediction.run
    assert pattern.rows is None
    assert pattern.batch_rows is None
    return pattern


def test_a_split_along_another_dimension_has_no_rows_but_a_reason() -> None:
    prediction = predict_splits(make_spec("dp", 2, 30, parallelism={"dim": 1}), 100)

    pattern = unknown_rows(prediction)
    assert (pattern.steps, pattern.first_step, pattern.last_step) == (4, 0, 3)
    assert "dimension 1" in prediction.notes["patterns.rows"]


def test_modules_placed_on_several_devices_share_no_rows() -> None:
    spec = make_spec("single", 2, 30, parallelism={"placement": {"embedding": 0, "rnn": 1}})

    prediction = predict_splits(spec, 100)

    assert unknown_rows(prediction).steps == 4
    assert "placed on several devices" in prediction.notes["patterns.rows"]


def test_a_wrapped_sub_module_is_named_in_its_patterns() -> None:
    prediction = predict_splits(make_spec("dp", 2, 30, parallelism={"module": "block2"}), 60)

    assert [(pattern.module, pattern.rows) for pattern in prediction.run] == [("block2", (15, 15))]


def test_forward_mode_has_its_own_phase() -> None:
    prediction = predict_splits(make_spec("dp", 2, 30, mode="forward"), 60)

    assert [pattern.phase for pattern in prediction.run] == ["forward"]


def test_a_loader_that_drops_everything_gives_no_pattern() -> None:
    assert predict_splits(make_spec("dp", 2, 30, drop_last=True), 20).run == ()
