"""The smallest training there is, as one would write it for torchrun or plain python; `start.py` runs it on all sides.

    python ddp_linear.py FIRST_STEP_FILE [cpu | cuda]

Rank 0 writes the time at which its first optimizer step was done (seconds since the epoch) to that file. With
torchrun's variables there is a group of ranks (nccl on cuda, else gloo), without them one process. It leaves with
`os._exit`: how it ends is not what is measured here, and ending a gloo group in the usual ways hangs now and then with
torch 2.13 (pytorch#190489).
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ROWS, FEATURES, CLASSES, BATCH_SIZE, STEPS = 100, 5, 2, 15, 4


def main(first_step_file: Path, kind: str = "cpu") -> None:
    distributed = "RANK" in os.environ
    device = torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)) if kind == "cuda" else 0)
    if distributed:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,)))
    sampler: DistributedSampler[Any] | None = DistributedSampler(data, shuffle=False) if distributed else None
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)
    model: nn.Module = nn.Linear(FEATURES, CLASSES).to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[device] if kind == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    for step, (inputs, target) in enumerate(loader):
        optimizer.zero_grad()
        loss(model(inputs.to(device)), target.to(device)).backward()
        optimizer.step()
        if step == 0 and int(os.environ.get("RANK", 0)) == 0:
            if kind == "cuda":
                torch.cuda.synchronize(device)
            first_step_file.write_text(repr(time.time()))
        if step + 1 == STEPS:
            break
    if distributed:
        dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    os._exit(0)
