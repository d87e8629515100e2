"""The tutorials' scripts as jobs that rehearse, through a real worker: their reports have the splits that GPUs gave."""

from typing import Any

import pytest

from jobs.model.state import JobState
from tests.integration.training.rehearsed import SCRIPTS
from tests.integration.training.test_rehearsal_scripts import HUNDRED_BY_THIRTY
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

Step = tuple[int, ...]

SPAWNING = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(rank, world, store):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{store}", rank=rank, world_size=world)
    model = DistributedDataParallel(nn.Linear(5, 2).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(10, 5))
    for (rows,) in DataLoader(data, 5, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        model(rows.cuda()).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    devices = torch.cuda.device_count()
    mp.spawn(main, args=(devices, os.path.abspath("store")), nprocs=devices)
"""


def rehearsed(service: Service, script: str, strategy: str, devices: int, *args: str) -> dict[str, Any]:
    """The report of a job that ran a script of examples/scripts, and succeeded."""
    source = {f"{script}.py": (SCRIPTS / f"{script}.py").read_text()}
    job = service.run_script(
        source, *args, strategy=strategy, devices=devices, entrypoint=f"{script}.py", rehearse=True
    )
    end = service.ended(job, 60)
    assert end.state == JobState.SUCCEEDED, end.error
    report = service.report(job)
    assert report["rehearsal"]
    return report


def steps(report: dict[str, Any], phase: str) -> dict[Step, int]:
    """How many steps there were of each split."""
    return {tuple(found["rows"]): found["steps"] for found in report["patterns"] if found["phase"] == phase}


def expected(devices: int) -> dict[Step, int]:
    """A hundred rows in batches of thirty, with 0 for the devices that get nothing."""
    counted: dict[Step, int] = {}
    for rows in HUNDRED_BY_THIRTY[devices]:
        step = (*rows, *[0] * (devices - len(rows)))
        counted[step] = counted.get(step, 0) + 1
    return counted


def test_a_rehearsed_script_has_the_report_and_the_logs_of_three_gpus(service: Service) -> None:
    source = {"tour.py": (SCRIPTS / "data_parallel_tour.py").read_text()}
    job = service.run_script(source, strategy="dp", devices=3, entrypoint="tour.py", rehearse=True)
    assert service.ended(job, 60).state == JobState.SUCCEEDED
    report = service.report(job)
    assert report["rehearsal"]
    assert steps(report, "forward") == expected(3)
    assert report["patterns"][0]["input_shapes"] == [[10, 5]] * 3
    assert "Let's use 3 GPUs!" in service.text(job, 0)
    for device, last in enumerate((4, 4, 2)):
        lines = [line for line in service.text(job, device).splitlines() if "In Model" in line]
        assert [line.split("[")[1].split(",")[0] for line in lines] == ["10", "10", "10", str(last)]


@pytest.mark.slow
@pytest.mark.parametrize("devices", sorted(HUNDRED_BY_THIRTY))
@pytest.mark.parametrize(
    ("script", "phase"),
    [
        ("data_parallel_tour", "forward"),
        ("notebook_progress", "forward"),
        ("functional_primitives", "train"),
        ("block_data_parallel", "train"),
    ],
)
def test_every_script_splits_as_the_tutorials_print(service: Service, script: str, phase: str, devices: int) -> None:
    report = rehearsed(service, script, "dp", devices)
    assert steps(report, phase) == expected(devices)


@pytest.mark.slow
def test_ranks_that_ask_for_nccl_get_their_samplers_rows(service: Service) -> None:
    report = rehearsed(service, "ddp_sampler", "ddp", 4)
    assert steps(report, "train") == {(23, 23, 23, 23): 2}


@pytest.mark.slow
def test_training_and_testing_a_cnn_are_told_apart(service: Service) -> None:
    report = rehearsed(service, "cifar_cnn", "dp", 3, "--rows", "300", "--epochs", "2")
    assert steps(report, "train") == {(43, 43, 42): 4, (15, 15, 14): 2}
    assert steps(report, "eval") == {(20, 20, 20): 2}


@pytest.mark.slow
def test_a_part_on_the_cpu_leaves_the_rows_with_the_one_device(service: Service) -> None:
    report = rehearsed(service, "embedding_on_cpu", "single", 1)
    assert steps(report, "train") == {(30,): 3, (10,): 1}


@pytest.mark.slow
def test_a_cold_start_rehearses_beside_modules_that_are_called_like_ours(service: Service) -> None:
    source = (SCRIPTS / "data_parallel_tour.py").read_text()
    files = {"tour.py": f"import workers\n{source}", "workers/__init__.py": "", "jobs.py": ""}
    job = service.run_script(
        files, strategy="dp", devices=3, entrypoint="tour.py", rehearse=True, env={"OMP_NUM_THREADS": "1"}
    )
    end = service.ended(job, 60)
    assert end.state == JobState.SUCCEEDED, end.error
    assert steps(service.report(job), "forward") == expected(3)


@pytest.mark.slow
def test_processes_that_a_script_spawns_rehearse_too(service: Service) -> None:
    job = service.run_script({"train.py": SPAWNING}, devices=2, rehearse=True)
    end = service.ended(job, 120)
    assert end.state == JobState.SUCCEEDED, end.error
    assert steps(service.report(job), "train") == {(5, 5): 1}


def test_what_cannot_be_rehearsed_ends_the_job_with_the_line_and_the_reason(service: Service) -> None:
    job = service.run_script({"train.py": "import torch\ntorch.cuda.Stream()\n"}, rehearse=True)
    end = service.ended(job, 60)
    assert end.state == JobState.FAILED
    assert end.error is not None
    assert 'train.py", line 2, in <module>' in end.error["traceback"]
    assert "Work on several CUDA streams cannot be rehearsed" in str(end.error)
