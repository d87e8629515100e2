"""DistributedDataParallel over NCCL: one process per GPU, and a DistributedSampler that deals out the rows.

Plain: torchrun --nproc-per-node 4 ddp_sampler.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

INPUT_SIZE, OUTPUT_SIZE = 5, 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(INPUT_SIZE, OUTPUT_SIZE)

    def forward(self, rows):
        output = self.fc(rows)
        print("\tIn Model: input size", rows.size(), "output size", output.size())
        return output


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    if dist.get_rank() == 0:
        print("Let's use", torch.cuda.device_count(), "GPUs!")

    torch.manual_seed(0)
    rows = torch.randn(args.rows, INPUT_SIZE)
    labels = (rows.sum(1) > 0).long()
    dataset = TensorDataset(rows, labels)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)

    model = Model().to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for batch, target in loader:
            batch, target = batch.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(batch)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            print("Outside: input size", batch.size(), "output_size", output.size())
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"Epoch {epoch}: mean loss {total.item() / dist.get_world_size() / len(loader):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
