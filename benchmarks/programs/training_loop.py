"""The training loop of PyTorch's tutorials, for one process or for DistributedDataParallel under torchrun.

    python training_loop.py linear 2000 200 RESULT            trains once; 200 steps are not counted
    python training_loop.py linear 2000 200 RESULT --serve    waits for a file RESULT.go, trains once, and so on, until
                                                              it reads "end" there

RESULT gets the steps a second of rank 0 that were counted, as text. The program knows nothing of who starts it.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class DigitsCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.0), nn.Linear(32 * 16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images.reshape(-1, 1, 8, 8)))
        return logits


class Cifar10Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


class Batched(TensorDataset):
    """The rows of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        chosen = torch.tensor(indices)
        return [tensor.index_select(0, chosen) for tensor in self.tensors]


#: Nobody may be there any more who asks for a block.
WAIT_SECONDS = 120.0

#: Model, shape of a row, rows, classes, batch size of a rank, learning rate and momentum.
LOOPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int, float, float]] = {
    "linear": (lambda: nn.Linear(5, 2), (5,), 3000, 2, 15, 0.01, 0.0),
    "digits": (DigitsCnn, (64,), 1437, 10, 32, 0.05, 0.9),
    "cifar": (Cifar10Cnn, (3, 32, 32), 2048, 10, 64, 0.01, 0.9),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("steps", type=int)
    parser.add_argument("skip", type=int)
    parser.add_argument("result", type=Path)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--batched", action="store_true", help="take the rows of a batch at once, as recipes do")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank, device = int(os.environ.get("RANK", "0")), torch.device(args.device)
    if ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    make, shape, rows, classes, batch_size, rate, momentum = LOOPS[args.loop]
    kind = Batched if args.batched else TensorDataset
    data = kind(torch.randn(rows, *shape), torch.randint(0, classes, (rows,)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] | None = DistributedSampler(data) if ranks > 1 else None
    own: dict[str, Any] = {"collate_fn": lambda batch: batch} if args.batched else {}
    loader = DataLoader(data, batch_size, shuffle=sampler is None, sampler=sampler, **own)
    model = make().to(device)
    if ranks > 1:
        model = DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    # A loss is read in every step where that is cheap; with several ranks, or a GPU, it would make them wait.
    every = 1 if ranks == 1 and device.type == "cpu" else 10

    def train() -> float:
        step, epoch, total, began = 0, 0, 0.0, 0.0
        while True:
            if sampler is not None:
                sampler.set_epoch(epoch)
            for inputs, labels in loader:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
                if step % every == 0:
                    total += loss.item()
                step += 1
                if step == args.skip:
                    began = time.perf_counter()
                elif step == args.steps:
                    return float(args.steps - args.skip) / (time.perf_counter() - began)
            epoch += 1

    go = args.result.with_suffix(".go")
    while True:
        deadline = time.monotonic() + WAIT_SECONDS
        while args.serve and not go.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("nobody has asked for a block")
            time.sleep(0.005)
        if args.serve and go.read_text() == "end":
            break
        speed = train()
        if ranks > 1:
            dist.barrier()
        if rank == 0:
            go.unlink(missing_ok=True)
            written = args.result.with_suffix(".new")
            written.write_text(str(speed))
            written.rename(args.result)
        if ranks > 1:
            dist.barrier()
        if not args.serve:
            break
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
