"""The probe and torch.compile: forwards are seen, and the compiler sees nothing of the probe."""

import importlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.support.probe_runs import learn, watched, watched_ranks
from tests.unit.workers.probe.test_wrappers import begin


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(x))


def blocks(hooked: bool) -> nn.Module:
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 2))
    if hooked:
        net[0].register_forward_hook(lambda module, args, outputs: outputs * 1)
    return net


def compiled(way: str, net: nn.Module) -> tuple[list[int], dict[str, int], int]:
    """Train and evaluate with a compiled model; graphs, frames and graph breaks that it took."""
    from torch._dynamo.utils import counters

    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    call: Any = net
    if way == "method":
        net.compile(backend=backend)
    else:
        call = torch.compile(net, backend=backend, fullgraph=way == "fullgraph")
    for rows in (4, 4, 6):
        learn(optimizer, call(torch.randn(rows, 8)).sum())
    with torch.no_grad():
        call.eval()(torch.randn(5, 8))
    frames = {name: count for name, count in counters["frames"].items() if name == "ok"}
    return graphs, frames, sum(counters["graph_break"].values())


def unwatched(way: str, hooked: bool) -> Any:
    """The same in a process from which the probe's part in calls of modules is taken out first."""
    original = nn.Module.__call__.__wrapped__  # type: ignore[attr-defined]
    nn.Module.__call__ = original  # type: ignore[method-assign]
    homes: list[Any] = [importlib.import_module(f"torch._dynamo.{name}") for name in ("utils", "variables.nn_module")]
    for home in homes:
        home.unpatched_nn_module_call = original
    return compiled(way, blocks(hooked))


def watched_way(way: str, hooked: bool) -> Any:
    return compiled(way, blocks(hooked))


@pytest.mark.parametrize(
    ("way", "hooked"), [("fullgraph", False), pytest.param("method", True, marks=pytest.mark.slow)]
)
def test_a_compiled_model_is_seen_and_compiled_as_without_the_probe(way: str, hooked: bool) -> None:
    seen = watched(watched_way, way, hooked)
    assert seen.rows() == [[(4,)], [(4,)], [(6,)]]
    assert seen.rows("eval") == [[(5,)]]
    assert {split.module for splits in seen.splits() for split in splits} == {""}
    assert seen.result == watched(unwatched, way, hooked).result


def compiled_ddp(store: str, rank: int, way: str) -> None:
    begin(store, rank)
    inner: Any = torch.compile(blocks(False), backend="eager") if way == "inside" else blocks(False)
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    call: Any = net
    if way == "outside":
        call = torch.compile(net, backend="eager")
    for rows in (4, 6):
        learn(optimizer, call(torch.randn(rows, 8)).sum())


@pytest.mark.parametrize("way", [pytest.param("inside", marks=pytest.mark.slow), "outside"])
def test_a_compiled_ddp_is_seen(way: str) -> None:
    for seen in watched_ranks(compiled_ddp, way):
        assert seen.rows() == [[(4,)], [(6,)]]
        assert seen.steps()[1].comm_ms is not None


def whole_function() -> None:
    net = blocks(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = torch.compile(lambda x: net(x).sum(), backend="eager", fullgraph=True)
    for _ in range(2):
        learn(optimizer, loss(torch.randn(4, 8)))


def test_a_model_within_a_compiled_function_is_a_known_blind_spot() -> None:
    seen = watched(whole_function)
    assert seen.rows() == [[(None,)]] * 2
    assert "torch.compile of a whole function" in seen.notes()


def compiled_optimizer() -> None:
    net = blocks(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        loss: Any = net(torch.randn(4, 8)).sum()
        loss.backward()
        step()


def test_where_the_optimizer_is_compiled_a_backward_is_a_step() -> None:
    seen = watched(compiled_optimizer)
    assert seen.rows() == [[(4,)]] * 3
    assert "no optimizer step was seen" in seen.notes()
