"""The rival's side of `start.py`: the same training as its job, as one would write it for torchrun.

Rank 0 writes the time at which its first optimizer step was done (seconds since the epoch) to the file named in
the first argument. The ranks leave with `os._exit`: how they end is not what is measured here, and ending a gloo
group in the usual ways hangs now and then with torch 2.13 (pytorch#190489).
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ROWS, FEATURES, CLASSES, BATCH_SIZE, STEPS = 100, 5, 2, 15, 4


def main(first_step_file: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,)))
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(nn.Linear(FEATURES, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    for step, (inputs, target) in enumerate(loader):
        optimizer.zero_grad()
        loss(model(inputs), target).backward()
        optimizer.step()
        if step == 0 and dist.get_rank() == 0:
            first_step_file.write_text(repr(time.time()))
        if step + 1 == STEPS:
            break
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)
