"""The FLOP of one step are those that the formulas give, and counting them changes nothing that a program sees."""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from jobs.protocol.records import FLOP_STEP, BatchSplit, Step
from tests.integration.training.ranks import RankRun
from tests.support.probe_runs import Seen, learn, watched, watched_ranks
from tests.support.training_runs import Kept, report_here, run_here, spec_of
from tests.unit.workers.probe.test_wrappers import begin
from workers.probe import flop_count
from workers.probe.flop_count import JOINT, FlopCount

WIDTHS = (5, 7, 3)
STEPS = FLOP_STEP + 4


def flop_of_mlp(rows: int, widths: Sequence[int] = WIDTHS) -> int:
    """By hand: 2 m n k for each product. Forward has one for each layer; backward has one for its weight, and one for
    its input, which the first layer's does not need."""
    layers = [2 * rows * into * out for into, out in itertools.pairwise(widths)]
    return 3 * sum(layers) - layers[0]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 3))


def recipe(batch_size: int, **more: Any) -> dict[str, Any]:
    return {
        "model": {"ref": "mlp", "args": {"in_features": 5, "hidden": [7], "out_features": 3, "dropout": 0.3}},
        "data": {
            "ref": "random_vectors",
            "args": {"rows": batch_size * STEPS, "features": 5, "classes": 3},
            "batch_size": batch_size,
        },
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
    } | more


def counted(seen: Kept | Seen | RankRun) -> Step:
    """The only step whose FLOP were counted, which has no times."""
    (step,) = [step for step in seen.of(Step) if step.flop is not None]
    assert (step.phase, step.step) == ("train", FLOP_STEP)
    assert {*step.forward_ms, *step.backward_ms, step.comm_ms, step.optimizer_ms, step.cycle_ms} == {None}
    return step


# -- recipes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "devices", "rows"), [("single", 1, (8,)), ("dp", 2, (4, 4)), ("dp", 3, (3, 3, 2))]
)
def test_the_flop_of_a_recipe_are_those_of_each_devices_rows(
    strategy: str, devices: int, rows: tuple[int, ...]
) -> None:
    step = counted(run_here(recipe(8), devices=devices, strategy=strategy)[1])

    assert step.flop == {"float32": tuple(flop_of_mlp(count) for count in rows)}


def test_a_report_has_the_flop_of_a_step_and_of_a_second() -> None:
    report = report_here(spec_of(recipe(8), devices=2, strategy="dp"))

    assert [device.flop_per_step for device in report.per_device] == [flop_of_mlp(4)] * 2
    assert report.flop_per_step == flop_of_mlp(8)
    assert report.rows_per_second is not None
    assert report.flop_per_second == pytest.approx(report.rows_per_second / 8 * flop_of_mlp(8), rel=1e-3)
    assert (report.mfu, report.tokens_per_second) == (None, None)
    assert report.notes["mfu"] == "virtual devices have no peak to compare with"
    assert report.notes["tokens_per_second"].startswith("the model's inputs are not token ids")
    for device in report.per_device:
        assert device.forward_ms is not None
        assert (device.steps, device.forward_ms.measured_steps) == (STEPS, STEPS - 1)


def test_a_recipe_learns_the_same_whether_its_flop_are_counted_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [run_here(recipe(8), devices=2, strategy="dp")[0].loss]
    monkeypatch.setattr("workers.training.loop.FLOP_STEP", 10**9)
    results.append(run_here(recipe(8), devices=2, strategy="dp")[0].loss)

    assert results[0] == results[1]


def test_short_runs_and_models_in_parts_have_none_and_say_why() -> None:
    short = report_here(spec_of(recipe(8, max_steps=FLOP_STEP)))
    assert (short.flop_per_step, short.notes["flop_per_step"]) == (
        None,
        f"FLOP are counted in training step {FLOP_STEP}, which was not reached",
    )
    parts = {"embedding": 0, "rnn": 1}
    placed = report_here(
        spec_of(recipe(8, model={"ref": "embedding_rnn", "args": {"out_features": 3}}), devices=2, placement=parts)
    )
    assert placed.flop_per_step is None
    assert placed.notes["flop_per_second"] == flop_count.PLACED
    assert placed.rows_per_second == max(device.rows_per_second or 0 for device in placed.per_device)


# -- scripts ---------------------------------------------------------------------------------------


def batches(rows: int, steps: int = STEPS) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows * steps, 5, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.randint(3, (rows * steps,), generator=generator)), rows)


def train(net: nn.Module, rows: int = 8, steps: int = STEPS) -> list[float]:
    """Train, and evaluate in between; returns the losses."""
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for x, y in batches(rows, steps):
        loss = nn.functional.cross_entropy(net(x), y)
        learn(optimizer, loss)
        losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            net(x)
        net.train()
    return losses


def script() -> list[float]:
    return train(mlp())


def script_that_is_not_counted() -> list[float]:
    FlopCount.watch = lambda self, slot, model=None: nullcontext()  # type: ignore[method-assign]
    return train(mlp())


def script_on_gpus() -> None:
    train(DataParallel(mlp().cuda()))


def ddp_script(store: str, rank: int) -> None:
    begin(store, rank)
    train(DistributedDataParallel(mlp()))


def test_the_flop_of_a_script_are_counted_beside_its_evaluations() -> None:
    seen = watched(script)

    assert counted(seen).flop == {"float32": (flop_of_mlp(8),)}
    assert [step.step for step in seen.steps() if step.forward_ms[0] is None] == [FLOP_STEP]
    assert all(step.forward_ms[0] is not None for step in seen.steps("eval"))


def test_a_script_computes_the_same_whether_its_flop_are_counted_or_not() -> None:
    assert watched(script).result == watched(script_that_is_not_counted).result


def test_ranks_of_a_script_count_their_own() -> None:
    for seen in watched_ranks(ddp_script):
        assert counted(seen).flop == {"float32": (flop_of_mlp(8),)}


def test_the_flop_of_data_parallel_are_those_of_its_shards() -> None:
    step = counted(watched(script_on_gpus, devices=2, rehearsed=True))

    assert step.flop == {"float32": (flop_of_mlp(4), flop_of_mlp(4))}


# -- where it would be in the way ------------------------------------------------------------------


class OwnMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_a_mode_of_its_own() -> None:
    with OwnMode():  # type: ignore[no-untyped-call]
        train(mlp())


def compiled() -> None:
    train(torch.compile(mlp(), backend="eager"))  # type: ignore[arg-type]


def scripted() -> None:
    train(torch.jit.script(mlp()))


def with_two_optimizers() -> None:
    one, other = mlp(), mlp()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (one, other)]
    for number, (x, y) in enumerate(batches(8, 2 * STEPS)):
        net, optimizer = ((one, optimizers[0]), (other, optimizers[1]))[number % 2]
        learn(optimizer, nn.functional.cross_entropy(net(x), y))


class WithCustomOperation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(torch.ops.shardyard_test.heavy(x))  # type: ignore[no-any-return]


def with_an_operation_of_its_own() -> None:
    library: Any = torch.library.Library("shardyard_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("heavy(Tensor x) -> Tensor")
    library.impl("heavy", torch.clone, "CompositeExplicitAutograd")
    train(WithCustomOperation())


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (in_a_mode_of_its_own, flop_count.OWN_MODE),
        (scripted, flop_count.COMPILED),
        (with_two_optimizers, flop_count.SEVERAL),
        (compiled, flop_count.COMPILED),
    ],
)
def test_nothing_is_counted_where_it_would_be_in_the_way(program: Any, reason: str) -> None:
    seen = watched(program)

    assert f"flop_per_step: {reason}" in seen.notes()
    assert [step.flop for step in seen.steps() if step.flop is not None] == []
    assert all(step.forward_ms[0] is not None for step in seen.steps())


def test_an_operation_without_a_formula_makes_the_flop_unknown() -> None:
    seen = watched(with_an_operation_of_its_own)

    assert counted(seen).flop == {}
    assert "flop_per_step: the FLOP of shardyard_test.heavy.default are not known" in seen.notes()


def test_what_all_devices_did_together_is_divided_as_their_forwards_were() -> None:
    count = FlopCount(3)
    for slot, flop in ((0, 10), (1, 10), (2, 5), (JOINT, 51)):
        count.add("bfloat16", slot, flop)
    count.add("float32", JOINT, 5)

    assert count.result() == {"bfloat16": (10 + 21, 10 + 20, 5 + 10), "float32": (2, 2, 1)}


def test_attention_on_the_host_has_a_formula() -> None:
    count, query = FlopCount(1), torch.randn(2, 4, 16, 8, requires_grad=True)
    with count.watch(0):
        nn.functional.scaled_dot_product_attention(query, query, query)

    assert count.result() == {"float32": (2 * 2 * (2 * 4 * 16 * 16 * 8),)}  # scores, and their product with the values


# -- tokens ----------------------------------------------------------------------------------------


class TokenModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 4), nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids).mean(1))  # type: ignore[no-any-return]


def on_token_ids() -> None:
    net, optimizer = TokenModel(), None
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for length in (6, 9, 6):
        learn(optimizer, net(torch.randint(50, (4, length))).sum())


def test_batches_of_token_ids_are_told_apart_from_others() -> None:
    assert [split.holds_tokens for split in watched(on_token_ids).of(BatchSplit)] == [True, True]
    assert not any(split.holds_tokens for split in watched(script).of(BatchSplit))
