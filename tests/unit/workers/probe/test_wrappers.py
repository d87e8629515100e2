"""What the probe makes of DataParallel, DistributedDataParallel and FSDP in programs that know nothing of it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from jobs.protocol.probe_records import Activity, Group, Loaded, Wrapped
from tests.support.probe_runs import Seen, backward, learn, watched, watched_ranks
from tests.unit.workers.probe.test_loops import network, vectors


def scatter(rows: int, devices: int) -> tuple[int, ...]:
    """What torch.chunk gives."""
    shards = [len(shard) for shard in torch.zeros(rows).chunk(devices)]
    return (*shards, *[0] * (devices - len(shards)))


# -- DataParallel ----------------------------------------------------------------------------------


def data_parallel(rows: int = 100) -> None:
    net = nn.DataParallel(network().cuda())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(rows), 30):
        learn(optimizer, nn.functional.cross_entropy(net(x.cuda()), y.cuda()))


def test_data_parallel_shows_each_device_its_shard() -> None:
    seen = watched(data_parallel, devices=3, rehearsed=True)
    assert seen.rows() == [[scatter(rows, 3)] for rows in (30, 30, 30, 10)]
    ((split,), *_) = seen.splits()
    assert (split.batch_rows, split.devices, split.module) == (30, (0, 1, 2), "")
    assert split.input_shapes == ((10, 5),) * 3
    assert split.output_shapes == ((10, 2),) * 3
    assert seen.of(Wrapped) == [Wrapped("DataParallel", "Sequential", (0, 1, 2))]


def test_data_parallel_has_its_primitives_and_shards_timed() -> None:
    for step in watched(data_parallel, devices=2, rehearsed=True).steps():
        assert step.primitives is not None
        assert step.primitives.replicate_ms > 0
        assert step.primitives.scatter_ms > 0
        assert step.primitives.gather_ms > 0
        assert all(ms is not None and ms > 0 for ms in (*step.forward_ms, *step.backward_ms))
        assert step.primitives.parallel_apply_ms >= sum(ms or 0 for ms in step.forward_ms)


def test_what_a_wrapper_makes_of_times_is_said() -> None:
    notes = watched(data_parallel, devices=2, rehearsed=True).notes()
    assert "per_device.comm_ms: copies between devices" in notes
    assert "per_device.backward_ms: of each shard's own operations" in notes
    assert "waiting for the slowest rank" in watched_ranks(distributed)[0].notes()


def test_a_device_that_gets_nothing_has_no_rows_and_no_shape() -> None:
    seen = watched(data_parallel, 33, devices=4, rehearsed=True)
    assert seen.rows() == [[(8, 8, 8, 6)], [(1, 1, 1, 0)]]
    assert seen.splits()[-1][0].input_shapes == ((1, 5), (1, 5), (1, 5), None)


class WithBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(5, 6)
        self.block = nn.DataParallel(nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.before(x))  # type: ignore[no-any-return]


def wrapped_block() -> None:
    net = WithBlock().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(), 30):
        learn(optimizer, nn.functional.cross_entropy(net(x.cuda()), y.cuda()))


def test_a_wrapped_block_is_named_by_its_path() -> None:
    seen = watched(wrapped_block, devices=2, rehearsed=True)
    assert seen.rows() == [[(15, 15)]] * 3 + [[(5, 5)]]
    assert {split.module for splits in seen.splits() for split in splits} == {"block"}
    assert seen.splits()[0][0].input_shapes == ((15, 6), (15, 6))


def by_hand() -> None:
    net = network().cuda()
    devices = list(range(torch.cuda.device_count()))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(), 30):
        replicas = nn.parallel.replicate(net, devices)
        shards = nn.parallel.scatter(x.cuda(), devices)
        outputs = nn.parallel.parallel_apply(replicas[: len(shards)], shards)
        learn(optimizer, nn.functional.cross_entropy(nn.parallel.gather(outputs, 0), y.cuda()))


def test_primitives_that_are_called_by_hand_make_a_split() -> None:
    seen = watched(by_hand, devices=3, rehearsed=True)
    assert seen.rows() == [[scatter(rows, 3)] for rows in (30, 30, 30, 10)]
    assert all(step.primitives is not None for step in seen.steps())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.parallel.data_parallel(self.main, x, range(torch.cuda.device_count()))


def functional() -> None:
    net = Functional().cuda()
    for x, _ in DataLoader(vectors(), 30):
        with torch.no_grad():
            net(x.cuda())


def test_functional_data_parallel_within_a_model_makes_a_split() -> None:
    seen = watched(functional, devices=4, rehearsed=True)
    assert seen.rows("eval") == [[scatter(rows, 4)] for rows in (30, 30, 30, 10)]


# -- DistributedDataParallel -----------------------------------------------------------------------


def begin(store: str, rank: int, world: int = 2) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)


def distributed(store: str, rank: int, accumulate: int = 1) -> None:
    begin(store, rank)
    net = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    sampler: DistributedSampler[Any] = DistributedSampler(vectors(50), shuffle=False)
    for number, (x, y) in enumerate(DataLoader(vectors(50), 10, sampler=sampler)):
        if (number + 1) % accumulate:
            with net.no_sync():
                backward(nn.functional.cross_entropy(net(x), y))
            continue
        learn(optimizer, nn.functional.cross_entropy(net(x), y))


def test_each_rank_of_ddp_shows_what_its_sampler_gave() -> None:
    for rank, seen in enumerate(watched_ranks(distributed)):
        assert seen.rows() == [[(10,)], [(10,)], [(5,)]]
        assert {split.devices for splits in seen.splits() for split in splits} == {(rank,)}
        assert seen.of(Group) == [Group(rank, 2, "gloo")]
        gradients = sum(4 * parameter.numel() for parameter in network().parameters())
        assert seen.of(Wrapped) == [Wrapped("DistributedDataParallel", "Sequential", (), gradients)]
        (passed,) = seen.of(Loaded)
        assert (passed.sampler, passed.replicas, passed.replica) == ("DistributedSampler", 2, rank)


def test_ranks_that_share_the_work_went_over_different_rows() -> None:
    first, second = (seen.of(Loaded)[0] for seen in watched_ranks(distributed))
    assert first.digest != second.digest


def test_ddp_tells_computing_from_waiting() -> None:
    for seen in watched_ranks(distributed):
        step = seen.steps()[1]
        assert step.backward_ms[0] is not None
        assert step.comm_ms is not None


def test_accumulated_batches_are_forwards_of_one_step() -> None:
    for seen in watched_ranks(distributed, 3):
        assert seen.rows() == [[(10,), (10,), (5,)]]


def duplicated(store: str, rank: int) -> None:
    begin(store, rank)
    net = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(50), 25, shuffle=True):
        learn(optimizer, nn.functional.cross_entropy(net(x), y))


def test_ranks_without_a_distributed_sampler_went_over_the_same_rows() -> None:
    first, second = (seen.of(Loaded)[0] for seen in watched_ranks(duplicated))
    assert first.digest == second.digest
    assert first.replicas is None


class OwnRows(Dataset[Any]):
    """Each rank has rows of its own, and a fingerprint that says so, as the data sets of a well-known library have."""

    def __init__(self, rank: int) -> None:
        self._fingerprint = f"shard {rank}"

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(5)


def with_own_rows(store: str, rank: int, shared: bool) -> None:
    begin(store, rank)
    torch.manual_seed(rank)
    for _ in DataLoader(OwnRows(0 if shared else rank), 8, shuffle=True):
        pass


def test_fingerprints_tell_rows_apart_that_have_the_same_indices() -> None:
    for shared in (True, False):
        first, second = (seen.of(Loaded)[0] for seen in watched_ranks(with_own_rows, shared))
        assert (first.digest == second.digest) is shared


class Partition(Dataset[Any]):
    """A part of a data set, as a program may cut it by hand."""

    def __init__(self, index: list[int] | list[str]) -> None:
        self.index = index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Any:
        return torch.zeros(5)


def partitions_in_turn() -> None:
    even, odd = list(range(0, 40, 2)), list(range(1, 40, 2))
    for index in (even, list(even), odd, [f"{row}.png" for row in even], [f"{row}.png" for row in odd]):
        for _ in DataLoader(Partition(index), 8, shuffle=True):
            pass


def test_parts_that_a_program_has_cut_by_hand_are_told_apart_by_what_they_keep() -> None:
    even, again, odd, *files = (load.digest for load in watched(partitions_in_turn).of(Loaded))
    assert even == again
    assert len({even, odd, *files}) == 4


def by_hand_averaged(store: str, rank: int) -> None:
    begin(store, rank)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(50), 25):
        loss = nn.functional.cross_entropy(net(x), y)
        backward(loss)
        for parameter in net.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        dist.all_reduce(loss.detach())
        optimizer.step()


def by_parts(store: str, rank: int) -> None:
    begin(store, rank)
    for _ in DataLoader(Subset(vectors(40), range(0, 40, 1 + rank)), 10, shuffle=bool(rank)):
        pass


def test_rows_can_be_compared_among_ranks_by_what_they_hold() -> None:
    first, second = ({index: sums for index, *sums in seen.of(Loaded)[0].contents} for seen in watched_ranks(by_parts))
    assert sorted(first) == list(range(40))
    assert second == {index: sums for index, sums in first.items() if index % 2 == 0}


def by_messages(store: str, rank: int) -> None:
    begin(store, rank)
    net = nn.Linear(9, 1)
    sent = [torch.zeros_like(net.weight) for _ in range(2)]
    dist.all_gather(sent, net.weight.detach())  # before any training
    for _ in range(3):
        backward(net(torch.randn(4, 9)).sum())
        dist.all_gather(tensor_list=sent, tensor=net.weight.grad)
        dist.broadcast(torch.zeros(1), 0)  # a loss
        operation = dist.isend if rank == 0 else dist.irecv
        for request in dist.batch_isend_irecv([dist.P2POp(operation, sent[0], 1 - rank)]):
            request.wait()


def test_other_ways_to_send_tensors_are_counted_from_the_first_training_on() -> None:
    for seen in watched_ranks(by_messages):
        last = seen.of(Activity)[-1]
        assert (last.reductions, last.exchanges >= 6) == (0, True)


def test_reductions_of_gradients_are_counted_and_those_of_a_loss_are_not() -> None:
    for seen in watched_ranks(by_hand_averaged):
        assert seen.of(Activity)[-1].reductions == 2 * 2  # both weights; biases are smaller than the bound


def sharded(store: str, rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    begin(store, rank)
    net = network()
    mesh = init_device_mesh("cpu", (2,))
    for part in (net[0], net[2], net):  # type: ignore[index]
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(50), 25):
        learn(optimizer, nn.functional.cross_entropy(net(x), y))


def tensor_parallel(store: str, rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    begin(store, rank)
    torch.manual_seed(0)
    net = network()
    parallelize_module(net, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(50), 25):
        learn(optimizer, nn.functional.cross_entropy(net(x), y))


def test_a_model_whose_tensors_lie_across_ranks_is_said_to() -> None:
    for seen in watched_ranks(tensor_parallel):
        assert [each.kind for each in seen.of(Wrapped)] == ["parallelize_module"]
        assert seen.rows() == [[(25,)], [(25,)]]


def test_a_sharded_model_is_one_forward_for_each_batch() -> None:
    seen: Seen
    for seen in watched_ranks(sharded):
        assert seen.rows() == [[(25,)], [(25,)]]
        assert {each.kind for each in seen.of(Wrapped)} == {"fully_shard"}


# -- what else DataParallel does -------------------------------------------------------------------


class Talking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("rows", len(x))
        return self.inner(x)  # type: ignore[no-any-return]


def talking() -> None:
    net = nn.DataParallel(Talking().cuda())
    with torch.no_grad():
        net(torch.randn(10, 5).cuda())
    print("outside")


def test_what_a_replica_prints_goes_to_the_log_of_its_device() -> None:
    assert watched(talking, devices=3, rehearsed=True).printed == ["rows 4\noutside\n", "rows 4\n", "rows 2\n"]


def on_the_second() -> None:
    net = network().to("cuda:1")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in DataLoader(vectors(40), 20):
        learn(optimizer, nn.functional.cross_entropy(net(x.to("cuda:1")), y.to("cuda:1")))


def test_a_model_on_one_of_several_devices_is_seen_there() -> None:
    seen = watched(on_the_second, devices=3, rehearsed=True)
    assert seen.rows() == [[(20,)]] * 2
    assert {split.devices for splits in seen.splits() for split in splits} == {(1,)}


class OwnParallel(nn.DataParallel[nn.Module]):
    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        return super().scatter(inputs, kwargs, device_ids)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return super().forward(*inputs, **kwargs)


def subclassed() -> None:
    net = OwnParallel(network().cuda())
    with torch.no_grad():
        net(torch.randn(10, 5).cuda())
        net.module(torch.randn(7, 5).cuda())


def test_a_subclass_of_data_parallel_is_one_and_the_way_around_it_is_seen() -> None:
    seen = watched(subclassed, devices=2, rehearsed=True)
    assert seen.rows("eval") == [[(5, 5)], [(7,)]]
    assert {split.module for splits in seen.splits("eval") for split in splits} == {""}


def both(store: str, rank: int) -> None:
    begin(store, rank)
    ddp, dp = DistributedDataParallel(network()), nn.DataParallel(network())
    learn(
        torch.optim.SGD([*ddp.parameters(), *dp.parameters()], 0.1),
        ddp(torch.ones(4, 5)).sum() + dp(torch.ones(6, 5)).sum(),
    )


def test_ddp_and_dp_in_one_process_are_both_seen() -> None:
    for rank, seen in enumerate(watched_ranks(both)):
        assert seen.rows() == [[(4,), (6,)]]
        assert [split.module for split in seen.splits()[0]] == ["Sequential", "Sequential#2"]
        assert [split.devices for split in seen.splits()[0]] == [(rank,), (rank,)]
        assert [each.kind for each in seen.of(Wrapped)] == ["DistributedDataParallel", "DataParallel"]
