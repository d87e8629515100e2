"""The probe on what real training code does besides the plain loop: what counts as a step, as a forward, as rows."""

import copy
import gc
import io
import pickle
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from jobs.protocol.probe_records import Activity, Loaded
from tests.support.probe_runs import Seen, backward, learn, watched
from tests.unit.workers.probe.test_loops import network, vectors
from workers.probe.steps import step_builder
from workers.probe.steps.step_builder import StepBuilder

Pair = namedtuple("Pair", "first second")


def sgd(*nets: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for net in nets for parameter in net.parameters()], 0.01)


def names(seen: Seen, phase: str = "train") -> list[list[str]]:
    return [[split.module for split in splits] for splits in seen.splits(phase)]


# -- steps -----------------------------------------------------------------------------------------


def accumulating() -> None:
    net = network()
    optimizer = sgd(net)
    for number, (x, _) in enumerate(DataLoader(vectors(), 10)):
        backward(net(x).sum())
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def test_accumulated_batches_belong_to_the_step_that_uses_them() -> None:
    seen = watched(accumulating)
    assert seen.rows() == [[(10,)] * 4] * 2
    assert seen.rows("forward") == [[(10,)]] * 2
    assert "led to no optimizer step" in seen.notes()


def generative() -> None:
    maker, judge = nn.Linear(3, 5), nn.Linear(5, 1)
    made_by, judged_by = sgd(maker), sgd(judge)
    for x, _ in DataLoader(vectors(40), 20):
        fake = maker(torch.randn(20, 3))
        learn(judged_by, judge(x).sum() + judge(fake.detach()).sum())
        learn(made_by, judge(fake).sum())


def test_two_models_with_two_optimizers_give_two_steps_for_a_batch() -> None:
    seen = watched(generative)
    assert names(seen) == [["Linear", "Linear#2", "Linear#2"], ["Linear#2"]] * 2
    assert seen.rows() == [[(20,)] * 3, [(20,)]] * 2


def with_a_closure() -> None:
    net = network()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for x, _ in DataLoader(vectors(40), 20):

        def closure(x: torch.Tensor = x) -> Any:
            optimizer.zero_grad()
            loss = net(x).square().sum()
            backward(loss)
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]


def test_what_an_optimizer_evaluates_belongs_to_its_step() -> None:
    seen = watched(with_a_closure)
    assert len(seen.steps()) == 2
    assert all(len(splits) > 1 for splits in seen.rows())


class Twice(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def with_nested_optimizers() -> None:
    net = network()
    optimizer = Twice(net.parameters(), 0.1)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net(x).sum())


def test_only_the_outermost_optimizer_step_counts() -> None:
    assert watched(with_nested_optimizers).rows() == [[(20,)]] * 2


def failing_in_a_step() -> None:
    net = network()
    optimizer = sgd(net)
    for number, (x, _) in enumerate(DataLoader(vectors(60), 20)):

        def closure(x: torch.Tensor = x, number: int = number) -> Any:
            loss = net(x).sum()
            if number == 1:
                raise ValueError("not this one")
            return loss

        try:
            optimizer.step(closure)
        except ValueError:
            optimizer.zero_grad()


def test_a_step_that_raises_does_not_hide_the_next() -> None:
    assert watched(failing_in_a_step).rows() == [[(20,)], [(20,), (20,)]]


def mixed_precision() -> None:
    net = network()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for number, (x, y) in enumerate(DataLoader(vectors(60), 20)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        backward(scaler.scale(loss * (float("inf") if number == 1 else 1.0)))
        scaler.step(optimizer)
        scaler.update()


def test_a_step_that_the_scaler_skips_is_a_step() -> None:
    seen = watched(mixed_precision)
    assert seen.rows() == [[(20,)]] * 3
    assert "GradScaler skipped" in seen.notes()


def without_an_optimizer() -> None:
    net = network()
    for x, _ in DataLoader(vectors(60), 20):
        backward(net(x).sum())
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad  # type: ignore[misc]


def test_without_an_optimizer_a_backward_is_a_step() -> None:
    seen = watched(without_an_optimizer)
    assert seen.rows() == [[(20,)]] * 3
    assert seen.steps()[0].backward_ms[0] is not None
    assert "no optimizer step was seen" in seen.notes()


def siamese() -> None:
    net = network()
    for x, _ in DataLoader(vectors(40), 10):
        net(x)  # looked at, and thrown away
        backward(nn.functional.mse_loss(net(x[:5]), net(x[5:])))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[misc,operator]


def test_without_an_optimizer_all_forwards_of_a_backward_are_its_step() -> None:
    seen = watched(siamese)
    assert seen.rows() == [[(5,), (5,)]] * 4
    assert seen.rows("forward") == [[(10,)]] * 4


def recurrent() -> None:
    cell = nn.RNNCell(5, 5)
    for _ in range(2):
        state = torch.zeros(4, 5)
        for _ in range(520):
            state = cell(torch.randn(4, 5), state)
        backward(state.sum())


def test_a_cell_without_an_optimizer_is_called_as_often_as_it_likes_before_its_backward() -> None:
    assert [len(splits) for splits in watched(recurrent).rows()][-1] == 520


def builder_that_is_quiet() -> StepBuilder:
    """The step builder of this process, for which every moment is one of quiet."""
    step_builder.QUIET_SECONDS = 0.0
    return next(each for each in gc.get_objects() if type(each) is StepBuilder)


def pausing(build_late: bool) -> list[int]:
    builder, net = builder_that_is_quiet(), network()
    numbers = []
    for x, _ in DataLoader(vectors(40), 20):
        output = net(x)
        builder.settle_quiet()  # a backward may follow
        numbers.append(builder.sender.next_number("train"))
        backward(output.sum())
        builder.settle_quiet()
        numbers.append(builder.sender.next_number("train"))
        if build_late:
            sgd(net).step()
    return numbers


@pytest.mark.parametrize("build_late", [False, True])
def test_a_step_without_an_optimizer_is_over_when_nothing_follows_its_backward(build_late: bool) -> None:
    seen = watched(pausing, build_late)
    assert seen.result == [0, 1, 1, 1 if build_late else 2]
    assert seen.rows() == [[(20,)]] * 2


def pausing_after_forwards() -> list[int]:
    builder, net = builder_that_is_quiet(), network()
    numbers = []
    for x, _ in DataLoader(vectors(40), 20):
        net(x)
        builder.settle_quiet()
        numbers.append(builder.sender.next_number("forward"))
    optimizer = sgd(net)
    net.eval()
    net(torch.randn(7, 5))
    builder.settle_quiet()
    numbers.append(builder.sender.next_number("eval"))
    del optimizer
    return numbers


def test_a_forward_is_over_when_its_graph_is_gone() -> None:
    assert watched(pausing_after_forwards).result == [1, 2, 1]


def only_forwards() -> None:
    net = network()
    for x, _ in DataLoader(vectors(), 30):
        net(x)


def test_a_loop_of_forwards_alone_is_phase_forward() -> None:
    seen = watched(only_forwards)
    assert seen.rows("forward") == [[(30,)], [(30,)], [(30,)], [(10,)]]
    assert seen.steps() == seen.steps("eval") == []


def stepping_blindly() -> None:
    weight = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    for x, _ in DataLoader(vectors(60), 20):
        learn(optimizer, (x @ weight).sum())


def test_a_step_whose_forward_cannot_be_seen_says_so() -> None:
    seen = watched(stepping_blindly)
    assert seen.rows() == [[(None,)]] * 3
    assert "without a forward that could be seen" in seen.notes()


# -- train or eval ---------------------------------------------------------------------------------


def evaluating_in_many_ways() -> None:
    net = network()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(20), 20):
        learn(optimizer, net(x).sum())
    net.eval()
    for x, _ in DataLoader(vectors(7), 7):
        net(x)  # with gradients
    net.train()
    with torch.inference_mode():
        for x, _ in DataLoader(vectors(8), 8):
            net(x)


def test_eval_mode_and_no_gradients_are_evaluation() -> None:
    seen = watched(evaluating_in_many_ways)
    assert seen.rows() == [[(20,)]]
    assert seen.rows("eval") == [[(7,)], [(8,)]]


def training_in_eval_mode() -> None:
    net = network().eval()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net(x).sum())


def test_training_in_eval_mode_is_training() -> None:
    seen = watched(training_in_eval_mode)
    assert seen.rows() == [[(20,)]] * 2
    assert seen.rows("eval") == []


def with_a_wrong_flag() -> None:
    wrapper = nn.DataParallel(network())
    wrapper.module.eval()
    for x, _ in DataLoader(vectors(20), 20):
        wrapper(x)


def test_the_mode_is_that_of_the_inner_module() -> None:
    assert watched(with_a_wrong_flag).rows("eval") == [[(20,)]]


def with_a_teacher() -> None:
    teacher, net = nn.Linear(5, 2), network()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, nn.MSELoss()(net(x), teacher(x).detach()))


def test_a_model_that_no_optimizer_changes_is_no_part_of_training() -> None:
    seen = watched(with_a_teacher)
    assert seen.rows() == [[(20,)]] * 2
    assert names(seen) == [[""]] * 2


# -- forwards --------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))  # type: ignore[no-any-return]


def recomputing(reentrant: bool) -> None:
    net, head = nn.Linear(5, 8), nn.Linear(8, 2)
    optimizer = sgd(net, head)
    whole = Checkpointed()
    optimizer.add_param_group({"params": list(whole.parameters())})
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, whole(x).sum())
    del whole
    for x, _ in DataLoader(vectors(40), 20):
        hidden = checkpoint(net, x.requires_grad_(), use_reentrant=reentrant)
        learn(optimizer, head(hidden).sum())


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_backward_computes_again_is_no_forward(reentrant: bool) -> None:
    seen = watched(recomputing, reentrant)
    assert len(seen.steps()) == 4
    assert seen.rows()[:2] == [[(20,)]] * 2
    assert seen.of(Activity)[-1].forwards <= 2 + 2 * 2


def calling_twice() -> None:
    net = network()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net(x).sum() + net(x).sum())


def test_a_model_called_twice_is_two_forwards() -> None:
    assert watched(calling_twice).rows() == [[(20,), (20,)]] * 2


def with_scripts_and_traces() -> None:
    net = network()
    traced = torch.jit.trace(net, torch.randn(3, 5), check_trace=False)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for x, _ in DataLoader(vectors(20), 20):
            traced(x)


@pytest.mark.filterwarnings("ignore")
def test_tracing_is_no_forward_and_what_was_traced_is_one() -> None:
    seen = watched(with_scripts_and_traces)
    assert seen.rows("eval") == [[(20,)]]
    assert seen.of(Activity)[-1].forwards == 1


def with_functional_transforms() -> None:
    net = network()
    parameters: dict[str, torch.Tensor] = dict(net.named_parameters())
    x = torch.randn(6, 5)
    with torch.no_grad():
        torch.func.vmap(lambda row: torch.func.functional_call(net, parameters, (row,)))(x)


def test_inside_a_transform_no_rows_are_counted() -> None:
    seen = watched(with_functional_transforms)
    assert seen.rows("eval") == [[(None,)]]
    assert "torch.func" in seen.notes()


def copying() -> tuple[Any, ...]:
    net = nn.DataParallel(network())
    optimizer = sgd(net)
    learn(optimizer, net(torch.randn(4, 5)).sum())
    other = copy.deepcopy(net)
    again = pickle.loads(pickle.dumps(net))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    with torch.no_grad():
        x = torch.randn(4, 5)
        same = [torch.equal(net(x), each(x)) for each in (other, again, saved)]
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    return same, sorted(net.__dict__) == sorted(nn.DataParallel(network()).__dict__), list(state), len(file.getvalue())


def test_copies_pickles_and_files_are_as_without_the_probe() -> None:
    same, untouched, state, size = watched(copying).result
    plain = copying()
    assert same == [True] * 3
    assert untouched
    assert (state, size) == (plain[2], plain[3])


class Coder(nn.Module):
    """Is used by its methods, as by frameworks that have a loop of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(5, 3), nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 5)])

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(x)  # type: ignore[no-any-return]

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return [x := layer(x) for layer in self.up][-1]  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        return (self.up[1](self.up[0](self.down(x))) - x).square().mean()  # type: ignore[no-any-return]


def by_its_methods() -> None:
    net = Coder()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net.training_step(x))
    for x, _ in DataLoader(vectors(14), 7):
        with torch.no_grad():
            net.decode(net.encode(x))


def test_a_method_that_calls_parts_is_a_forward_of_the_whole() -> None:
    seen = watched(by_its_methods)
    assert seen.rows() == [[(20,)]] * 2
    assert names(seen) == [[""]] * 2
    assert {split.output_shapes for splits in seen.splits() for split in splits} == {((20, 5),)}
    assert seen.rows("eval") == [[(7,)]] * 4
    assert {name for names in names(seen, "eval") for name in names} == {""}


def by_its_forward() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net.forward(x).sum())  # type: ignore[no-untyped-call]


def test_a_forward_that_is_called_by_its_name_is_a_forward() -> None:
    seen = watched(by_its_forward)
    assert seen.rows() == [[(20,)]] * 2
    assert seen.splits()[0][0].output_shapes == ((20, 2),)


def with_a_model_as_argument(net: Coder | None = None) -> None:
    if net is None:
        with_a_model_as_argument(Coder())
        return
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net.up[0](net.down(x)).sum())


def test_parts_that_a_function_calls_are_models_of_their_own() -> None:
    assert names(watched(with_a_model_as_argument)) == [["Linear", "Linear#2"]] * 2


# -- rows ------------------------------------------------------------------------------------------


class Named(nn.Module):
    """Takes and returns what models of libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, *args: Any, batch: Any = None, scale: float = 1.0) -> Any:
        return Output(self.inner(batch["x"] if isinstance(batch, dict) else args[0].first) * scale)


@dataclass
class Output:
    logits: torch.Tensor


def keywords_only() -> None:
    net = Named()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net(scale=2.0, batch={"name": "x", "x": x}).logits.sum())
    for x, _ in DataLoader(vectors(40), 20):
        learn(optimizer, net(Pair(x, None)).logits.sum())


def test_keywords_dicts_named_tuples_and_output_objects_have_rows_and_shapes() -> None:
    seen = watched(keywords_only)
    assert seen.rows() == [[(20,)]] * 4
    assert {split.output_shapes for splits in seen.splits() for split in splits} == {((20, 2),)}


def sequence_first() -> None:
    net = nn.RNN(5, 4)
    optimizer = sgd(net)
    for x, _ in DataLoader(TensorDataset(torch.randn(40, 7, 5), torch.zeros(40)), 20):
        learn(optimizer, net(x.transpose(0, 1))[0].sum())


def test_rows_that_disagree_with_the_loader_are_not_counted() -> None:
    seen = watched(sequence_first)
    assert seen.rows() == [[(None,)]] * 2
    assert seen.splits()[0][0].batch_rows is None
    assert seen.splits()[0][0].input_shapes == ((7, 20, 5),)
    assert "RNN is 7, and the batches of the DataLoader have 20 rows" in seen.notes()


def packed() -> None:
    net = nn.LSTM(5, 4)
    optimizer = sgd(net)
    for x, _ in DataLoader(TensorDataset(torch.randn(40, 7, 5), torch.zeros(40)), 20):
        sequences = nn.utils.rnn.pack_sequence([row[: 7 - number % 3] for number, row in enumerate(x)], False)
        learn(optimizer, net(sequences)[0].data.sum())


def test_rows_of_a_packed_sequence_are_its_sequences() -> None:
    assert watched(packed).rows() == [[(20,)]] * 2


def cut_by_hand() -> None:
    net = network()
    optimizer = sgd(net)
    for x, _ in DataLoader(vectors(40), 20):
        for part in x.split(8):
            backward(net(part).sum())
        optimizer.step()


def test_a_batch_that_is_cut_by_hand_has_the_rows_of_its_parts() -> None:
    assert watched(cut_by_hand).rows() == [[(8,), (8,), (4,)]] * 2


def unbatched() -> None:
    net = network()
    optimizer = sgd(net)
    for _ in range(3):
        learn(optimizer, net(torch.randn(5)).sum())


def test_inputs_without_a_batch_have_no_rows() -> None:
    seen = watched(unbatched)
    assert seen.rows() == [[(None,)]] * 3
    assert "no dimension of rows" in seen.notes()


def boxes() -> None:
    net = Boxes()
    optimizer = sgd(net)
    data = DataLoader(vectors(40), 20, collate_fn=lambda rows: [row for row, _ in rows])
    for rows in data:
        learn(optimizer, net(rows).sum())


class Boxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
        return self.inner(torch.stack(rows))  # type: ignore[no-any-return]


def test_lists_of_rows_are_not_taken_for_a_batch() -> None:
    assert watched(boxes).rows() == [[(None,)]] * 2


# -- loaders ---------------------------------------------------------------------------------------


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.randn(25, 5))


class Shard(Dataset[torch.Tensor]):
    def __init__(self, rank: int) -> None:
        self.rows = Subset(vectors(40), range(rank, 40, 2))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index][0]


def loading() -> None:
    for loader in (
        DataLoader(Stream(), 10),
        DataLoader(Subset(vectors(40), range(0, 40, 2)), 10),
        DataLoader(Subset(vectors(40), range(1, 40, 2)), 10),
        DataLoader(vectors(40), 10, num_workers=2, multiprocessing_context="fork"),
        DataLoader(vectors(40), 10, shuffle=True),
        DataLoader(vectors(40), None),
    ):
        for _ in loader:
            pass


def test_loaders_of_all_kinds_are_counted() -> None:
    stream, even, odd, workers, shuffled, single = watched(loading).of(Loaded)
    assert (stream.batches, stream.rows, stream.digest, stream.dataset_rows) == (3, 25, None, None)
    assert (even.rows, odd.rows) == (20, 20)
    assert even.digest != odd.digest  # the same numbers within different subsets
    assert (workers.batches, workers.rows, workers.complete) == (4, 40, True)
    assert workers.digest == shuffled.digest is not None
    assert (single.batches, single.rows, single.batch_size) == (40, None, None)


def leaving() -> None:
    loader = DataLoader(vectors(40), 10, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        for number, _ in enumerate(loader):
            if number == 1:
                break
    for _ in DataLoader(vectors(40), 10):
        break


def test_a_pass_that_was_left_tells_what_it_brought() -> None:
    passes = watched(leaving).of(Loaded)
    assert [(each.loader, each.number, each.batches, each.rows, each.complete) for each in passes] == [
        (0, 0, 2, 20, False),
        (1, 0, 1, 10, False),
        (0, 1, 2, 20, False),
    ]
