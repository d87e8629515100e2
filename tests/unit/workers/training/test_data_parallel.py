"""Virtual devices split, run and join exactly as nn.DataParallel does on real ones."""

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import scatter_gather

from tests.support.training_runs import Kept, context_of
from workers.probe.recorder import Recorder
from workers.rehearsal import virtual_devices
from workers.training.data_parallel import TracedDataParallel


def parallel(module: nn.Module, devices: int, **options: Any) -> TracedDataParallel:
    recorder = Recorder(context_of(devices, Kept()))
    return TracedDataParallel(module, range(devices), virtual=True, observer=recorder, **options)


class Spy(nn.Module):
    """Remembers the shapes it was given, in a list that the replicas share."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(rows.shape))
        return rows * 2


# -- shards ----------------------------------------------------------------------------------------


@given(rows=st.integers(1, 40), columns=st.integers(1, 12), devices=st.integers(1, 9), dim=st.sampled_from([0, 1, -1]))
@settings(max_examples=60, deadline=None)
def test_shards_are_those_of_chunk_and_the_joined_output_is_whole(
    rows: int, columns: int, devices: int, dim: int
) -> None:
    batch, spy = torch.randn(rows, columns), Spy()
    outputs = parallel(spy, devices, dim=dim)(batch)
    assert spy.shapes == [tuple(chunk.shape) for chunk in batch.chunk(devices, dim)]
    assert torch.equal(outputs, batch * 2)


@pytest.mark.parametrize(
    ("rows", "devices", "shards"),
    [(30, 3, [10, 10, 10]), (10, 3, [4, 4, 2]), (30, 8, [4, 4, 4, 4, 4, 4, 4, 2]), (10, 8, [2, 2, 2, 2, 2])],
)
def test_ragged_batches_give_small_last_shards_and_idle_devices(rows: int, devices: int, shards: list[int]) -> None:
    spy = Spy()
    parallel(spy, devices)(torch.randn(rows, 5))
    assert [shape[0] for shape in spy.shapes] == shards


@pytest.mark.parametrize("functional", [False, True])
def test_both_roads_give_the_same(functional: bool) -> None:
    model, batch = nn.Linear(5, 2), torch.randn(10, 5)
    assert torch.allclose(parallel(model, 3, functional=functional)(batch), model(batch))


class Pair(NamedTuple):
    left: Any
    right: Any


class _Chunk:
    """Stands in for torch's `Scatter`, whose only difference is that the chunks travel to GPUs."""

    @staticmethod
    def apply(devices: list[int], _: None, dim: int, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensor.chunk(len(devices), dim)


_leaves = st.one_of(
    st.integers(1, 12).map(lambda rows: torch.arange(rows * 2.0).reshape(rows, 2)),
    st.integers(0, 5),
    st.text(max_size=3),
    st.none(),
)
_nested = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@given(inputs=st.lists(_nested, min_size=1, max_size=3).map(tuple), devices=st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_nested_arguments_are_scattered_as_torch_scatters_them(inputs: tuple[Any, ...], devices: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter_gather, "Scatter", _Chunk)
        expected = scatter_gather.scatter(inputs, range(devices))
    positional, named = virtual_devices.scatter(inputs, {}, range(devices))
    assert same(list(positional), list(expected))
    assert list(named) == [{}] * len(expected)


def test_keyword_arguments_are_split_along_with_the_positional_ones() -> None:
    class Add(nn.Module):
        def forward(self, rows: torch.Tensor, *, bias: torch.Tensor, scale: float) -> torch.Tensor:
            return rows * scale + bias

    rows, bias = torch.randn(7, 3), torch.randn(7, 3)
    assert torch.allclose(parallel(Add(), 3)(rows, bias=bias, scale=2.0), rows * 2 + bias)


def test_a_forward_without_arguments_runs_once() -> None:
    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[int] = []

        def forward(self) -> torch.Tensor:
            self.calls.append(1)
            return torch.ones(1)

    model = Count()
    parallel(model, 4)()
    assert model.calls == [1]


# -- joining ---------------------------------------------------------------------------------------


def test_nested_outputs_are_joined_part_by_part() -> None:
    class Many(nn.Module):
        def forward(self, rows: torch.Tensor) -> Any:
            return {"pair": Pair(rows, rows + 1), "list": [rows], "nothing": None}

    rows = torch.randn(5, 2)
    joined = parallel(Many(), 3)(rows)
    assert same(joined, {"pair": Pair(rows, rows + 1), "list": [rows], "nothing": None})


def test_scalars_become_a_vector_with_torchs_warning() -> None:
    class Mean(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.mean()

    with pytest.warns(UserWarning, match="unsqueeze and return a vector"):
        means = parallel(Mean(), 2)(torch.tensor([[1.0], [2.0], [4.0], [6.0]]))
    assert means.tolist() == [1.5, 5.0]


def test_dicts_of_different_sizes_are_refused() -> None:
    class Uneven(nn.Module):
        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            return {str(n): rows for n in range(len(rows))}

    with pytest.raises(ValueError, match="same number of keys"):
        parallel(Uneven(), 2)(torch.randn(3, 1))


# -- replicas --------------------------------------------------------------------------------------


def trained_like_the_unsplit_model(model: nn.Module, batch: torch.Tensor, devices: int, **options: Any) -> None:
    """Output, loss and every gradient are those of the unsplit model, to rounding."""
    whole = copy.deepcopy(model)
    expected = whole(batch)
    expected.square().mean().backward()
    outputs = parallel(model, devices, **options)(batch)
    outputs.square().mean().backward()
    torch.testing.assert_close(outputs, expected)
    for (name, split), (_, unsplit) in zip(model.named_parameters(), whole.named_parameters(), strict=True):
        assert split.grad is not None, name
        torch.testing.assert_close(split.grad, unsplit.grad)


@given(rows=st.integers(1, 25), devices=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_outputs_loss_and_gradients_are_those_of_the_unsplit_model(rows: int, devices: int) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    trained_like_the_unsplit_model(model, torch.randn(rows, 5), devices)


def test_an_rnn_uses_the_weights_of_its_replica() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, num_layers=2, batch_first=True)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.rnn(rows)[0][:, -1]
            return outputs

    trained_like_the_unsplit_model(Last(), torch.randn(7, 5, 3), 3)


def test_parameters_that_two_modules_share_get_both_gradients() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.second(self.first(rows))
            return outputs

    trained_like_the_unsplit_model(Tied(), torch.randn(6, 4), 3)


def test_a_wrapped_submodule_passes_gradients_on_to_what_lies_before_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    whole, batch = copy.deepcopy(model), torch.randn(7, 4)
    model[1] = parallel(model[1], 3)
    model(batch).sum().backward()
    whole(batch).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, whole[0].weight.grad)


def test_an_operation_in_place_does_not_reach_the_callers_tensor() -> None:
    batch = torch.tensor([[-1.0], [2.0]], requires_grad=True)
    outputs = parallel(nn.ReLU(inplace=True), 2)(batch)
    assert outputs.tolist() == [[0.0], [2.0]]
    assert batch.tolist() == [[-1.0], [2.0]]


def test_state_that_forward_sets_is_lost_with_the_replica() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return rows

    model = Counter()
    wrapped = parallel(model, 2)
    wrapped(torch.randn(4, 1))
    wrapped(torch.randn(4, 1))
    assert model.count == 0


def test_batchnorm_statistics_are_those_of_the_first_shard() -> None:
    model, batch = nn.BatchNorm1d(3), torch.randn(10, 3)
    alone = copy.deepcopy(model)
    parallel(model, 3)(batch)
    alone(batch.chunk(3)[0])
    torch.testing.assert_close(model.running_mean, alone.running_mean)
    torch.testing.assert_close(model.running_var, alone.running_var)
    assert model.num_batches_tracked == alone.num_batches_tracked == 1


def test_hooks_of_the_module_run_once_in_every_replica() -> None:
    model, seen = nn.Linear(2, 2), []
    model.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    parallel(model, 2)(torch.randn(3, 2))
    assert seen == [2, 1]


# -- threads ---------------------------------------------------------------------------------------


class Modes(nn.Module):
    """Notes the modes and the thread of each replica's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool, str]] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        thread = threading.current_thread().name
        self.seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), thread))
        return rows


def test_each_shard_runs_in_the_thread_of_its_device_in_device_order() -> None:
    model = Modes()
    parallel(model, 3)(torch.randn(3, 1))
    assert [thread for *_, thread in model.seen] == ["cpu:0", "cpu:1", "cpu:2"]


def test_replicas_have_the_grad_and_autocast_mode_of_the_caller() -> None:
    model = Modes()
    wrapped = parallel(model, 2)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        wrapped(torch.randn(2, 1))
    wrapped(torch.randn(2, 1))
    assert [(grad, autocast) for grad, autocast, _ in model.seen] == [(False, True)] * 2 + [(True, False)] * 2


def test_without_gradients_replicas_share_no_graph_with_the_model() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        assert not parallel(model, 2)(torch.randn(4, 2)).requires_grad


def test_an_exception_keeps_its_class_and_names_the_replica_and_the_device() -> None:
    class Fails(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows[0, 0] == 1:
                raise KeyError("no such word")
            return rows

    with pytest.raises(KeyError, match=r"(?s)replica 1 on device cpu:1.*no such word"):
        parallel(Fails(), 2)(torch.tensor([[0.0], [1.0]]))


def test_a_shard_is_bound_to_its_device_while_it_runs() -> None:
    bound: list[str] = []

    @contextmanager
    def on(index: int) -> Iterator[None]:
        bound.append(f"on {index}")
        yield
        bound.append(f"off {index}")

    parallel(nn.Identity(), 2, on=on)(torch.randn(2, 1))
    assert bound == ["on 0", "off 0", "on 1", "off 1"]


# -- torch's own scatter and gather ----------------------------------------------------------------


class Tuple(tuple[Any, ...]):
    """Not a named tuple, and so torch gives plain ones back."""


class List(list[Any]):
    """As above."""


class Dict(dict[str, Any]):
    """torch keeps the class of a dict."""


class Nothing(NamedTuple):
    """Without any field."""


_odd = st.one_of(
    _nested,
    st.lists(_leaves, min_size=1, max_size=2).map(Tuple),
    st.lists(_leaves, min_size=1, max_size=2).map(List),
    st.dictionaries(st.text(max_size=2), _leaves, min_size=1, max_size=2).map(Dict),
    st.just(torch.Size([3, 4])),
    st.just(object()),
)


def torchs_scatter(inputs: tuple[Any, ...], kwargs: dict[str, Any], devices: int, dim: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter_gather, "Scatter", _Chunk)
        return scatter_gather.scatter_kwargs(inputs, kwargs, range(devices), dim)


@given(
    inputs=st.lists(_odd, max_size=3).map(tuple),
    kwargs=st.dictionaries(st.sampled_from(["a", "b", "c"]), _odd, max_size=2),
    devices=st.integers(1, 5),
    dim=st.sampled_from([0, 1]),
)
@settings(max_examples=300, deadline=None)
def test_arguments_of_every_kind_are_scattered_as_torch_scatters_them(
    inputs: tuple[Any, ...], kwargs: dict[str, Any], devices: int, dim: int
) -> None:
    positional, named = torchs_scatter(inputs, kwargs, devices, dim)
    ours, our_names = virtual_devices.scatter(inputs, kwargs, range(devices), dim)
    assert same(list(ours), list(positional))
    assert same(list(our_names), list(named))


def test_a_named_tuple_without_fields_gives_no_shard_at_all_as_in_torch() -> None:
    assert list(torchs_scatter((Nothing(),), {}, 3, 0)[0]) == list(
        virtual_devices.scatter((Nothing(),), {}, range(3))[0]
    )


def test_things_that_are_no_tensors_are_handed_on_and_not_copied() -> None:
    shared, empty = object(), list[int]()
    positional, _ = virtual_devices.scatter((torch.ones(4, 1), shared, [empty], {"k": shared}), {}, range(2))
    assert all(shard[1] is shared and shard[2][0] is empty and shard[3]["k"] is shared for shard in positional)


class _Join:
    """Stands in for torch's `Gather`, whose tensors come from GPUs."""

    @staticmethod
    def apply(_: int, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors], dim)


_outputs = st.recursive(
    st.one_of(st.builds(torch.ones, st.tuples(st.integers(1, 4), st.just(3))), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


@given(outputs=_outputs, shards=st.integers(1, 4), dim=st.sampled_from([0, 1]))
@settings(max_examples=150, deadline=None)
def test_outputs_of_every_kind_are_gathered_as_torch_gathers_them(outputs: Any, shards: int, dim: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter_gather, "Gather", _Join)
        expected = scatter_gather.gather([outputs] * shards, 0, dim)
    assert same(virtual_devices.gather([outputs] * shards, 0, dim), expected)


@pytest.mark.parametrize("outputs", [[1, 2], [object(), object()]])
def test_outputs_that_cannot_be_joined_fail_as_in_torch(outputs: list[Any]) -> None:
    for gather in (virtual_devices.gather, scatter_gather.gather):
        with pytest.raises(TypeError):
            gather(outputs, 0)


def test_a_keyword_tensor_with_too_few_rows_is_refused_and_not_left_out() -> None:
    class Keyword(nn.Module):
        def forward(self, rows: torch.Tensor, *, bias: torch.Tensor | None = None) -> torch.Tensor:
            return rows if bias is None else rows + bias

    with pytest.raises(ValueError, match="3 shards, but keyword arguments for 1"):
        parallel(Keyword(), 3)(torch.ones(3, 1), bias=torch.ones(1, 1))


def test_a_call_without_tensors_runs_on_every_device_with_the_same_arguments() -> None:
    class Word(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words: list[str] = []

        def forward(self, word: str) -> torch.Tensor:
            self.words.append(word)
            return torch.ones(1)

    model = Word()
    assert parallel(model, 3)("same").shape == (3,)
    assert model.words == ["same"] * 3


@pytest.mark.parametrize("functional", [False, True])
def test_fewer_shards_than_devices_leave_the_last_devices_idle(functional: bool) -> None:
    spy = Spy()
    outputs = parallel(spy, 5, functional=functional)([torch.ones(2, 1)][0])
    assert (len(spy.shapes), len(outputs)) == (2, 2)
