"""DistributedDataParallel on devices of unlike speed: each rank gets rows in proportion to its weight.

The weights are those of the job (`parallelism.weights` of its spec), or equal ones outside a job. With 3 and 2, batches
of 25 rows a rank are 30 and 20, and each rank's loss counts as much as its rows do: the gradient is that of one device
on all 50 rows.

Plain: torchrun --nproc-per-node 2 unlike_devices.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from shardyard import job
from shardyard.script.sampler import ShareSampler


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=503)
    parser.add_argument("--batch-size", type=int, default=25, help="rows of a rank, on average")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group(backend="nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")

    torch.manual_seed(0)
    inputs = torch.randn(args.rows, 5)
    dataset = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    sampler = ShareSampler(dataset, args.batch_size, job.weights(), shuffle=True, uneven="weigh")
    loader = DataLoader(dataset, batch_sampler=sampler)

    model = DistributedDataParallel(nn.Linear(5, 2).to(device), device_ids=[device] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for batch, (inputs, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(inputs.to(device)), target.to(device)) * sampler.loss_weight(batch)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:  # losses are weighed already, so that their mean is that of all rows
            print(f"Epoch {epoch}: mean loss {total.item() / dist.get_world_size() / len(loader):.6f}")
            job.log("loss", total.item() / dist.get_world_size() / len(loader), epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
