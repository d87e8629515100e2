"""Trains a linear layer under DistributedDataParallel until it is ended; `hosts.py` kills one of its ranks.

    python endless_ddp.py [DIRECTORY]

After its first step each rank writes its process id into a file of the directory that has the rank's number as name.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(directory: Path | None) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    step = 0
    while True:
        optimizer.zero_grad()
        loss(model(torch.randn(15, 5)), torch.randint(2, (15,))).backward()
        optimizer.step()
        if step == 0 and directory is not None:
            draft = directory.with_name(f"{directory.name}-{dist.get_rank()}")
            draft.write_text(str(os.getpid()))
            draft.rename(directory / str(dist.get_rank()))
        step += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
