"""What the report and the progress of a real script say: the same program, right and wrong."""

import json
from typing import Any, cast

import pytest

from jobs.model.state import JobState, StateReason
from jobs.protocol import names
from shardyard.contract.report import TIME_PARTS
from tests.integration.workers.service import TENANT, Service, eventually

pytestmark = pytest.mark.integration

#: Trains on 203 rows in batches of 32, for two epochs. Its arguments leave something out.
TRAIN = """
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

without = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(rank if "file" in without else 0)
if "group" not in without:
    dist.init_process_group("gloo")
data = TensorDataset(torch.randn(203, 4), torch.randint(0, 2, (203,)))
sampler = None if "sampler" in without else DistributedSampler(data, world, rank)
model = torch.nn.Linear(4, 2)
if "wrapper" not in without:
    model = DistributedDataParallel(model)
if "second" in without and rank == 1:
    sys.exit()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
if "group" not in without:
    dist.destroy_process_group()
"""


def trained(service: Service, *without: str) -> dict[str, Any]:
    """The report of two ranks."""
    job = service.run_script({"train.py": TRAIN}, *without, strategy="ddp", devices=2)
    assert service.ended(job).state is JobState.SUCCEEDED
    return service.report(job)


def found(report: dict[str, Any]) -> dict[str, str]:
    return {finding["code"]: finding["message"] for finding in report["findings"]}


def splits(report: dict[str, Any]) -> dict[tuple[int, ...], int]:
    return {tuple(pattern["rows"]): pattern["steps"] for pattern in report["patterns"]}


def test_ranks_that_share_a_data_set_get_what_their_sampler_gives_them(service: Service) -> None:
    report = trained(service)

    assert splits(report) == {(32, 32): 6, (6, 6): 2}
    assert set(found(report)) == {"sampler-padding"}
    assert report["prediction"]["matches"] is None


def test_ddp_without_a_distributed_sampler_is_said_to_do_everything_twice(service: Service) -> None:
    report = trained(service, "sampler")

    assert splits(report) == {(32, 32): 12, (11, 11): 2}
    assert "406 rows were processed in one pass, 203 of them distinct" in found(report)["duplicated-work"]


def test_a_file_of_its_own_for_each_rank_is_no_work_done_twice(service: Service) -> None:
    assert found(trained(service, "sampler", "file")) == {}


def test_two_trainings_beside_each_other_are_no_distributed_one(service: Service) -> None:
    report = trained(service, "group", "wrapper", "sampler")

    assert set(found(report)) == {"duplicated-work"}
    assert "2 processes without a process group" in found(report)["duplicated-work"]


def test_a_model_that_was_not_wrapped_drifts_apart(service: Service) -> None:
    assert "unsynchronised-ranks" in found(trained(service, "wrapper"))


#: The parts of a data set are made by hand. Its arguments leave something out.
PARTITION = """
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

without = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(200, 40), torch.randint(0, 2, (200,)))


class Partition(Dataset):
    def __init__(self, data, index):
        self.data, self.index = data, index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, number):
        return self.data[self.index[number]]


order = torch.randperm(200).tolist()
part = Subset(data, range(rank, 200, world)) if "partition" in without else Partition(data, order[rank * 100 :][:100])
model = torch.nn.Linear(40, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
for x, y in DataLoader(part, batch_size=25, shuffle=True):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    for parameter in model.parameters():
        if "average" not in without:
            dist.all_reduce(parameter.grad)
        parameter.data -= 0.1 * parameter.grad / world
        parameter.grad = None
dist.destroy_process_group()
"""


@pytest.mark.parametrize("without", [(), ("partition",), ("average",), ("average", "partition")])
def test_parts_made_by_hand_need_averaged_gradients(service: Service, without: tuple[str, ...]) -> None:
    job = service.run_script({"train.py": PARTITION}, *without, strategy="ddp", devices=2)
    assert service.ended(job).state is JobState.SUCCEEDED
    report = service.report(job)

    assert splits(report) == {(25, 25): 4}
    assert set(found(report)) == ({"unsynchronised-ranks"} if "average" in without else set())
    assert "findings" not in report["notes"]


def test_a_rank_that_leaves_the_others_waiting_is_named(service: Service) -> None:
    job = service.run_script({"train.py": TRAIN}, "second", strategy="ddp", devices=2, limits={"wall_seconds": 4.0})
    assert service.ended(job).reason is StateReason.WALL_LIMIT
    report = service.report(job)

    assert found(report)["fewer-processes"].endswith("rank 1 ran no forward and no step")
    assert "rank 0 had started step 0 (train) but not finished it" in report["notes"]["patterns.steps"]


#: Finishes all of its steps, without an optimizer, and never comes to its end.
WAITING = """
import time

import torch

for _ in range(3):
    torch.nn.Linear(3, 1)(torch.randn(7, 3)).sum().backward()
time.sleep(600)
"""


def test_a_last_step_that_was_finished_is_reported_although_the_script_never_ends(service: Service) -> None:
    job = service.run_script({"train.py": WAITING}, limits={"wall_seconds": 4.0})
    assert service.ended(job).reason is StateReason.WALL_LIMIT
    report = service.report(job)

    assert splits(report) == {(7,): 3}
    assert found(report) == {}
    assert "patterns.steps" not in report["notes"]


@pytest.mark.slow
def test_a_rank_that_waits_for_the_group_until_the_limit_is_named(service: Service) -> None:
    source = (
        "import os, time\nif os.environ['RANK'] == '1': time.sleep(600)\n"
        "import torch.distributed as dist\ndist.init_process_group('gloo')"
    )
    job = service.run_script({"train.py": source}, strategy="ddp", devices=2, limits={"wall_seconds": 9.0})
    assert service.ended(job).reason is StateReason.WALL_LIMIT
    message = found(service.report(job))["unmade-group"]

    assert message.startswith("rank 0 waited ")
    assert message.endswith(" s in init_process_group() until the end; rank 1 never called it")


def test_a_success_that_did_nothing_says_what_it_printed_last(service: Service) -> None:
    job = service.run_script({"train.py": "print('no GPU here, bye')"})
    assert service.ended(job).state is JobState.SUCCEEDED

    assert 'the last line it printed: "no GPU here, bye"' in found(service.report(job))["no-work-done"]


def test_progress_is_read_from_the_bar_that_a_script_draws(service: Service) -> None:
    source = "import sys\nsys.stderr.write('\\rtrain:  40%|####      | 4/10 [00:04<00:06,  1.00batch/s]')"
    job = service.run_script({"train.py": source})
    service.ended(job)
    key = names.progress_key(TENANT, job, 1)
    body = eventually(lambda: service.store.client.get(key), "progress is published")
    progress = json.loads(cast(bytes, body))

    assert (progress["step"], progress["steps"], progress["unit"], progress["source"]) == (4, 10, "batch", "tqdm")
    assert (progress["fraction"], progress["eta_seconds"], progress["steps_seen"]) == (0.4, None, 0)  # it has ended


# -- times -----------------------------------------------------------------------------------------

#: Rank 1 is slow in its input. Each rank prints what its own stop-watch says: of all, of its batches and backwards.
SLOW_INPUT = """
import json
import time

began = time.perf_counter()
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank, waited, reduced = dist.get_rank(), 0.0, 0.0


class Rows(Dataset):
    def __len__(self):
        return 90

    def __getitem__(self, index):
        time.sleep(0.06 * rank)
        return torch.randn(4)


model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches, asked = iter(DataLoader(Rows(), batch_size=1)), time.perf_counter()
for rows in batches:
    waited += time.perf_counter() - asked
    optimizer.zero_grad()
    loss = model(rows).sum()
    began_backward = time.perf_counter()
    loss.backward()
    reduced += time.perf_counter() - began_backward
    optimizer.step()
    asked = time.perf_counter()
print(json.dumps([time.perf_counter() - began, waited, reduced]))
"""


def test_the_times_of_ranks_are_those_of_a_stop_watch_and_add_up(service: Service) -> None:
    job = service.run_script({"train.py": SLOW_INPUT}, strategy="ddp", devices=2)
    assert service.ended(job).state is JobState.SUCCEEDED
    quick, slow = service.report(job)["per_device"]

    for rank, one in enumerate((quick, slow)):
        whole, waited, reduced = (1000 * seconds for seconds in json.loads(service.text(job, rank)))
        parts = {name: one[name]["total"] for name in TIME_PARTS}
        assert sum(parts.values()) == pytest.approx(one["wall_ms"], rel=0.03)
        assert one["wall_ms"] == pytest.approx(whole, rel=0.03, abs=100)
        assert parts["data_wait_ms"] == pytest.approx(waited, rel=0.03, abs=50)
        assert parts["backward_ms"] + parts["comm_ms"] == pytest.approx(reduced, rel=0.03, abs=50)
    assert quick["comm_ms"]["total"] >= 0.8 * quick["wall_ms"]
    assert slow["data_wait_ms"]["total"] >= 90 * 60
    assert service.report(job)["verdict"].startswith("Device 1 holds the others up")
    assert service.report(job)["balance"]["cause"] == "input"


RESTS = """
import json, subprocess, sys, time

began = time.perf_counter()
if sys.argv[1] == "starts the one that trains":
    subprocess.run([sys.executable, "train.py", "trains"], check=True, stdout=subprocess.DEVNULL)
else:
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    time.sleep(1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    time.sleep(1)
print(json.dumps(time.perf_counter() - began))
"""


@pytest.mark.parametrize("how", ["trains", "starts the one that trains"])
def test_a_device_has_its_whole_programs_time_also_that_before_and_after_its_steps(service: Service, how: str) -> None:
    job = service.run_script({"train.py": RESTS}, how)
    assert service.ended(job).state is JobState.SUCCEEDED
    (device,) = service.report(job)["per_device"]
    assert device["wall_ms"] == pytest.approx(1000 * json.loads(service.text(job)), rel=0.03, abs=100)
    assert sum(device[name]["total"] for name in TIME_PARTS if device[name]) == pytest.approx(device["wall_ms"])
