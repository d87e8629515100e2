"""DistributedDataParallel as the tutorials have it, down to its usual ending: a barrier, and the group is destroyed.

Prints when its last optimizer step was done, in seconds since the epoch, and writes that to the file
`<argument>.<rank>` where one is named.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(100, 5), torch.randint(2, (100,)))
    loader = DataLoader(data, batch_size=15, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss()
    for inputs, target in loader:
        optimizer.zero_grad()
        loss(model(inputs), target).backward()
        optimizer.step()
    now = time.time()
    print("last step at", now, flush=True)
    for name in sys.argv[1:]:
        with open(f"{name}.{rank}", "w") as file:
            file.write(repr(now))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
