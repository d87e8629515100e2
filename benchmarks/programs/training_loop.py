"""The training loop of PyTorch's tutorials, for one process or for DistributedDataParallel under torchrun.

    python training_loop.py linear 2000 200 --result FILE     trains once; 200 steps are not counted
    python training_loop.py --serve                           trains once for each line of its input: "linear 2000 200"

Rank 0 says the steps a second that were counted, as a line, or in FILE. Every time a new model is trained; a single
process does so in a fork that has imported torch and trained nothing. Between two lines the program sleeps: neither it
nor a rank of it looks for work. It knows nothing of who starts it.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
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


#: Model, shape of a row, rows, classes, batch size of a rank, learning rate and momentum.
LOOPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int, float, float]] = {
    "linear": (lambda: nn.Linear(5, 2), (5,), 3000, 2, 15, 0.01, 0.0),
    "digits": (DigitsCnn, (64,), 1437, 10, 32, 0.05, 0.9),
    "cifar": (Cifar10Cnn, (3, 32, 32), 2048, 10, 64, 0.01, 0.9),
}


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("steps", type=int)
    parser.add_argument("skip", type=int)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--batched", action="store_true", help="take the rows of a batch at once, as recipes do")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path, help="rows (input, target) in a file of NumPy; else they are random")
    serving = sys.argv[1:] == ["--serve"]
    for words in orders(ranks) if serving else [sys.argv[1:]]:
        args = parser.parse_args(words)
        if serving and ranks == 1:
            in_a_fork(lambda args=args: tell(args, train(args, ranks)))  # type: ignore[misc]
            continue
        speed = train(args, ranks)
        if ranks > 1:
            dist.barrier()
        if os.environ.get("RANK", "0") == "0":
            tell(args, speed)
    if ranks > 1:
        os._exit(0)  # ending a gloo group in the usual ways hangs or aborts now and then (pytorch#190489)


def tell(args: argparse.Namespace, speed: float) -> None:
    if args.result is None:
        print(speed, flush=True)
    else:
        args.result.write_text(str(speed))


def in_a_fork(act: Callable[[], None]) -> None:
    """In a process that is new each time.

    Raises:
        SystemExit: it failed, and has said so.
    """
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)


def orders(ranks: int) -> Iterator[list[str]]:
    """The lines of rank 0's input, on every rank."""
    while True:
        line = [sys.stdin.readline() if os.environ.get("RANK", "0") == "0" else ""]
        if ranks > 1:
            dist.broadcast_object_list(line)
        if not line[0]:
            return
        yield line[0].split()


def train(args: argparse.Namespace, ranks: int) -> float:
    """The steps a second of this rank."""
    device = torch.device(args.device)
    torch.manual_seed(0)
    make, shape, rows, classes, batch_size, rate, momentum = LOOPS[args.loop]
    kind = Batched if args.batched else TensorDataset
    if args.data is None:
        data = kind(torch.randn(rows, *shape), torch.randint(0, classes, (rows,)))
    else:
        with np.load(args.data) as arrays:
            data = kind(torch.from_numpy(arrays["input"]), torch.from_numpy(arrays["target"]))
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


if __name__ == "__main__":
    main()
