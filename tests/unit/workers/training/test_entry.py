"""A recipe, run in this process: what it sends, what it learns, and what it refuses."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.protocol.records import BatchSplit, DeviceInfo, MetricSample, Note, Outline, Step
from tests.support.training_runs import DIGITS, FORWARD, VECTORS, Kept, context_of, run_here, spec_of
from workers.runtime.context import RejectedByWorker, StopTraining
from workers.training import entry


def changed(program: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The program with some fields of some parts replaced: `changed(p, data={"batch_size": 8})`."""
    made = copy.deepcopy(program)
    for name, change in changes.items():
        made[name] = {**made.get(name, {}), **change} if isinstance(change, dict) else change
    return made


def losses(sink: Kept) -> list[float]:
    return [metric.value for metric in sink.of(MetricSample) if metric.name == "loss" and metric.device == -1]


# -- the split -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "batch", "devices", "steps"),
    [
        (100, 30, 1, [[30], [30], [30], [10]]),
        (100, 30, 2, [[15, 15]] * 3 + [[5, 5]]),
        (100, 30, 3, [[10, 10, 10]] * 3 + [[4, 4, 2]]),
        (100, 30, 8, [[4, 4, 4, 4, 4, 4, 4, 2]] * 3 + [[2, 2, 2, 2, 2, 0, 0, 0]]),
        (30, 30, 2, [[15, 15]]),
    ],
)
@pytest.mark.parametrize("mode", ["train", "forward"])
def test_the_rows_that_each_device_got_are_those_of_nn_dataparallel(
    rows: int, batch: int, devices: int, steps: list[list[int]], mode: str
) -> None:
    data = {"args": {"rows": rows, "features": 5}, "batch_size": batch}
    program = changed(VECTORS if mode == "train" else FORWARD, data=data)
    _, sink = run_here(program, devices=devices, strategy="dp")
    splits = {split.id: split for split in sink.of(BatchSplit)}
    seen = [splits[step.splits[0]] for step in sink.of(Step)]
    assert [list(split.rows) for split in seen] == steps
    assert {split.phase for split in seen} == {mode}
    for split in seen:
        assert split.batch_rows == sum(row or 0 for row in split.rows)
        assert split.devices == tuple(range(devices))
        assert split.input_shapes == tuple((row, 5) if row else None for row in split.rows)
        assert split.output_shapes == tuple((row, 2) if row else None for row in split.rows)


def test_equal_splits_are_sent_once() -> None:
    _, sink = run_here(changed(VECTORS, epochs=3), devices=3, strategy="dp")
    assert [step.splits for step in sink.of(Step)] == [(0,), (0,), (0,), (1,)] * 3
    assert len(sink.of(BatchSplit)) == 2


def test_a_wrapped_submodule_is_named_and_split_on_its_own() -> None:
    program = changed(
        FORWARD, model={"ref": "two_block", "args": {}}, data={"args": {"rows": 30, "features": 10}, "batch_size": 30}
    )
    _, sink = run_here(program, devices=2, strategy="dp", module="block2")
    (split,) = sink.of(BatchSplit)
    assert (split.module, split.rows, split.input_shapes) == ("block2", (15, 15), ((15, 20), (15, 20)))


def test_splitting_another_dimension_counts_along_it() -> None:
    program = changed(FORWARD, model={"ref": "test_entry_parts:Transposed", "args": {}})
    _, sink = run_with_parts(program, devices=2, strategy="dp", dim=1)
    assert sink.of(BatchSplit)[0].rows == (3, 2)
    assert sink.of(BatchSplit)[0].batch_rows == 5


def test_a_placed_model_gives_every_row_to_every_device_that_holds_a_part() -> None:
    program = changed(
        VECTORS, model={"ref": "embedding_rnn", "args": {"out_features": 2}}, data={"args": {"rows": 8, "features": 3}}
    )
    _, sink = run_here(program, devices=2, strategy="single", placement={"embedding": "cpu", "rnn": 1})
    (split,) = sink.of(BatchSplit)
    assert split.rows == (0, 8)
    assert split.output_shapes == (None, (8, 3, 2))


# -- times -----------------------------------------------------------------------------------------


def test_a_dp_step_has_the_times_of_each_device_and_of_the_four_primitives() -> None:
    _, sink = run_here(VECTORS, devices=8, strategy="dp")
    last = sink.of(Step)[-1]
    assert last.primitives is not None
    forward = [ms for ms in last.forward_ms if ms is not None]
    assert last.primitives.parallel_apply_ms >= sum(forward) > 0
    assert [ms is None for ms in last.forward_ms] == [False] * 5 + [True] * 3
    assert [ms is None for ms in last.backward_ms] == [False] * 5 + [True] * 3
    assert last.data_wait_ms is not None
    assert last.step_ms >= last.primitives.parallel_apply_ms


def test_what_cannot_be_measured_is_null_with_a_note() -> None:
    _, sink = run_here(VECTORS, devices=2, strategy="dp")
    noted = {note.field for note in sink.of(Note)}
    assert all(step.comm_ms is None and step.memory_peak_bytes == () for step in sink.of(Step))
    assert {"per_device.comm_ms", "per_device.memory_peak_bytes", "devices.memory_total_bytes"} <= noted


def test_the_slow_part_of_a_backward_is_charged_to_the_shard_that_has_it() -> None:
    program = changed(VECTORS, model={"ref": "test_entry_parts:SlowForBigRows", "args": {}}, max_steps=1)
    _, sink = run_with_parts(program, devices=3, strategy="dp")
    first, second, third = (ms or 0.0 for ms in sink.of(Step)[0].backward_ms)
    assert second > 20 > max(first, third)


def test_the_run_is_outlined_before_its_first_step() -> None:
    _, sink = run_here(changed(VECTORS, epochs=5, max_steps=7))
    outline = next(i for i, record in enumerate(sink.records) if isinstance(record, Outline))
    step = next(i for i, record in enumerate(sink.records) if isinstance(record, Step))
    assert sink.records[outline] == Outline(5, 4, 7, 30, 100)
    assert outline < step
    assert [info.device for info in sink.of(DeviceInfo)] == [0]


# -- learning --------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_losses_bit_for_bit_and_another_gives_others() -> None:
    program = changed(VECTORS, data={"shuffle": True}, epochs=2, seed=7)
    first, second = losses(run_here(program)[1]), losses(run_here(program)[1])
    assert len(first) == 8
    assert first == second
    assert first != losses(run_here(changed(program, seed=8))[1])


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_dp_has_the_losses_of_a_single_device_to_rounding(devices: int) -> None:
    program = changed(VECTORS, data={"shuffle": True}, epochs=2)
    single, split = losses(run_here(program)[1]), losses(run_here(program, devices=devices, strategy="dp")[1])
    assert split == pytest.approx(single, rel=1e-5)


def test_functional_dp_has_the_losses_of_dp() -> None:
    plain = losses(run_here(VECTORS, devices=3, strategy="dp")[1])
    assert losses(run_here(VECTORS, devices=3, strategy="dp", functional=True)[1]) == plain


def test_loss_curve_of_the_plain_road_stays_what_it_was() -> None:
    golden = [0.9132, 0.8607, 0.8362, 0.7471]
    assert losses(run_here(VECTORS)[1]) == pytest.approx(golden, abs=1e-4)


@pytest.mark.parametrize(("devices", "strategy"), [(1, "single"), (3, "dp")])
def test_digits_are_learned_to_95_percent(devices: int, strategy: str) -> None:
    result, sink = run_here(DIGITS, devices=devices, strategy=strategy)
    assert result.metrics["accuracy"] >= 0.95
    evaluated = [split for split in sink.of(BatchSplit) if split.phase == "eval"]
    assert [split.batch_rows for split in evaluated] == [128, 104]
    assert sink.records[-1] == result


def test_forward_mode_has_no_loss_and_no_gradients() -> None:
    program = changed(FORWARD, model={"ref": "test_entry_parts:NeedsNoGrad", "args": {}})
    result, _ = run_with_parts(program)
    assert result.loss is None


def test_max_steps_ends_the_run_within_an_epoch() -> None:
    _, sink = run_here(changed(VECTORS, epochs=3, max_steps=6))
    assert [(step.epoch, step.step) for step in sink.of(Step)] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]


def test_drop_last_leaves_the_ragged_batch_out() -> None:
    _, sink = run_here(changed(VECTORS, data={"drop_last": True}))
    assert len(sink.of(Step)) == 3


def test_parts_that_were_built_ahead_make_the_same_run() -> None:
    spec = spec_of(changed(VECTORS, data={"shuffle": True}), devices=1)
    usual, ahead = (context_of(1, Kept()) for _ in range(2))
    parts = entry.build_parts(spec, ahead)
    torch.rand(7)  # whatever else is drawn before the go
    assert entry.run_recipe(spec, ahead, parts) == entry.run_recipe(spec, usual)


@pytest.mark.parametrize("part", ["model", "data", "loss"])
def test_nobodys_code_is_run_ahead(part: str) -> None:
    assert entry.runs_only_our_code(spec_of(VECTORS))
    assert not entry.runs_only_our_code(spec_of(changed(VECTORS, **{part: {"ref": "some.package:thing"}})))


def test_a_stop_ends_the_run_after_the_current_step() -> None:
    sink = Kept()
    with pytest.raises(StopTraining, match="after step 1"):
        entry.run_recipe(spec_of(VECTORS), context_of(1, sink, stopping=lambda: len(sink.of(Step)) == 2))
    assert len(sink.of(Step)) == 2


# -- parts of the user's own -----------------------------------------------------------------------

PARTS = """
import time
import torch
from torch import nn

class Vectors(torch.utils.data.Dataset):
    def __init__(self, rows): self.rows = torch.randn(rows, 5)
    def __len__(self): return len(self.rows)
    def __getitem__(self, index): return self.rows[index]

class Transposed(nn.Module):
    def forward(self, rows): return rows * 2

class NeedsNoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
    def forward(self, rows):
        assert not torch.is_grad_enabled()
        return self.fc(rows)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, seconds):
        ctx.seconds = seconds
        return rows.view_as(rows)
    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None

class SlowForBigRows(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)
    def forward(self, rows):
        type(self).calls += 1
        return Slow.apply(self.fc(rows), 0.025 if type(self).calls == 2 else 0.0)

class Sgd(torch.optim.SGD):
    pass

def squares(outputs, target): return outputs.square().mean()
def fails(**args): raise OSError("disk on fire")
number = 3
"""


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_entry_parts.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "test_entry_parts", raising=False)


run_with_parts = run_here


def test_references_give_model_data_loss_and_optimizer() -> None:
    program = changed(
        VECTORS,
        model={"ref": "torch.nn:Linear"},
        data={"ref": "test_entry_parts:Vectors", "args": {"rows": 12}},
        loss={"ref": "test_entry_parts:squares"},
        optimizer={"ref": "test_entry_parts:Sgd", "args": {"lr": 0.5}},
        epochs=5,
    )
    curve = losses(run_here(program)[1])
    assert curve[-1] < curve[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"ref": "no_such_package:Net"}}, "program.model.ref: cannot import 'no_such_package:Net'"),
        ({"model": {"ref": "torch.nn:Liner"}}, "program.model.ref: cannot import 'torch.nn:Liner'"),
        ({"model": {"ref": "torch.nn:Linear", "args": {"in": 5}}}, "program.model.args: torch.nn:Linear does not"),
        ({"model": {"ref": "builtins:dict", "args": {}}}, "made a dict, not an nn.Module"),
        ({"model": {"ref": "linear", "args": {"in_features": 5}}}, "program.model.args.out_features"),
        ({"model": {"ref": "lineer"}}, "program.model.ref: unknown 'lineer'"),
        ({"model": {"args": {"in_features": 6, "out_features": 2}}}, "does not fit what data 'random_vectors' yields"),
        ({"data": {"ref": "builtins:object", "args": {}}}, "program.data.ref: builtins:object made a object"),
        ({"data": {"ref": "test_entry_parts:Vectors", "args": {"rows": 3}}}, "yields no target, which loss 'cross_ent"),
        ({"optimizer": {"args": {"lr": -1}}}, "program.optimizer.args: sgd does not take them: Invalid learning rate"),
        ({"optimizer": {"args": {"rate": 1}}}, "program.optimizer.args: sgd does not take them"),
        ({"loss": {"ref": "hinge"}}, "program.loss.ref: unknown 'hinge'"),
    ],
)
def test_what_cannot_be_built_is_rejected_with_the_field_to_change(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RejectedByWorker) as rejected:
        run_here(changed(VECTORS, **changes))
    assert message in str(rejected.value)


@pytest.mark.parametrize("strategy", ["dp", "single"])
def test_a_submodule_that_does_not_exist_is_rejected_with_those_that_do(strategy: str) -> None:
    program = changed(FORWARD, model={"ref": "two_block", "args": {"in_features": 5}})
    how: dict[str, Any] = {"module": "block9"} if strategy == "dp" else {"placement": {"block9": 0}}
    with pytest.raises(RejectedByWorker, match=r"block9.*block1, block2, block3"):
        run_here(program, devices=1, strategy=strategy, **how)


def test_an_error_of_the_users_own_code_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match="disk on fire"):
        run_here(changed(VECTORS, model={"ref": "test_entry_parts:fails", "args": {}}))


def test_torch_uses_the_threads_of_the_lease() -> None:
    run_here(FORWARD)
    assert torch.get_num_threads() == 1
