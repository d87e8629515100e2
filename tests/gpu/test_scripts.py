"""Users' own CUDA programs as jobs, warm and cold, alone and with processes of their own."""

from pathlib import Path

import pytest

from shardyard.contract.responses import JobStatus
from tests.gpu.conftest import ROOT, Runner, explain, printed

pytestmark = [pytest.mark.gpu, pytest.mark.acceptance, pytest.mark.timeout(240)]

TRAIN = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
ids = [int(word) for word in sys.argv[1].split(",")]
assert torch.cuda.is_available()
data = DataLoader(TensorDataset(torch.randn(100, 5)), batch_size=30)
model = nn.DataParallel(nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 2)).cuda(), device_ids=ids)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (batch,) in data:
    loss = model(batch.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}")
print("peak", torch.cuda.max_memory_allocated())
"""

SCALED = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for step in range(6):
    x = torch.randn(16, 8, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

GLOO = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def work(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "0"
    store = dist.FileStore("store", 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(5, 2).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.randn(10 + rank, 5, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = sum(p.double().sum() for p in model.parameters()).item()
    print(f"rank {rank} weights {total:.9f}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""

TOO_LARGE = """
import torch
print("asking", flush=True)
torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
"""


def test_data_parallel_on_one_gpu_is_seen_row_by_row(run: Runner, tmp_path: Path) -> None:
    job = run.script(tmp_path / "train.py", TRAIN, "0", strategy="dp")
    assert job.status.state == "succeeded", explain(job)
    report = job.report()
    assert sum(device.rows or 0 for device in report.per_device) == 100
    # What torch itself says of the peak, and what the report has of it.
    peak = int(printed(job).split("peak ")[1].split()[0])
    assert report.per_device[0].memory_peak_bytes is not None
    assert 0 < report.per_device[0].memory_peak_bytes <= peak


def test_data_parallel_with_a_second_logical_device_on_the_same_gpu(run: Runner, tmp_path: Path) -> None:
    """device_ids [0, 0] makes torch run all four primitives where there is one card."""
    job = run.script(tmp_path / "train.py", TRAIN, "0,0", strategy="dp")
    assert job.status.state == "succeeded", explain(job)
    assert sum(device.rows or 0 for device in job.report().per_device) == 100


def test_a_warm_and_a_cold_start_print_the_same(run: Runner, tmp_path: Path) -> None:
    warm = run.script(tmp_path / "train.py", TRAIN, "0", strategy="dp")
    cold = run.script(tmp_path / "train.py", TRAIN, "0", strategy="dp", env={"PYTORCH_CUDA_ALLOC_CONF": ""})
    assert warm.status.state == cold.status.state == "succeeded", explain(cold)
    assert printed(warm) == printed(cold)


def test_a_grad_scaler_of_a_script_is_no_obstacle(run: Runner, tmp_path: Path) -> None:
    job = run.script(tmp_path / "scaled.py", SCALED)
    assert job.status.state == "succeeded", explain(job)
    (device,) = job.report().per_device
    assert device.rows == 6 * 16


def test_two_ranks_by_gloo_share_one_gpu(run: Runner, tmp_path: Path) -> None:
    job = run.script(tmp_path / "two.py", GLOO)
    assert job.status.state == "succeeded", explain(job)
    words = [line for line in printed(job).splitlines() if "weights" in line]
    assert len({line.split("weights ")[1] for line in words}) == 1
    assert len(words) == 2


@pytest.mark.parametrize("name", ["cifar_cnn", "data_parallel_tour", "functional_primitives", "embedding_on_cpu"])
def test_the_example_scripts_run_on_a_gpu(run: Runner, name: str, tmp_path: Path) -> None:
    job = run.script(tmp_path / f"{name}.py", (ROOT / "examples" / "scripts" / f"{name}.py").read_text())
    assert job.status.state == "succeeded", explain(job)


def test_memory_that_is_not_there_is_named_as_the_reason(run: Runner, tmp_path: Path) -> None:
    status: JobStatus = run.script(tmp_path / "large.py", TOO_LARGE).status
    assert status.state == "failed"
    assert status.reason.code == "out_of_memory"
