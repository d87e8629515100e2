"""A small CNN for 32 x 32 pictures of ten classes, trained and tested under nn.DataParallel with SGD and momentum.

With `--data` it reads CIFAR-10 (the unpacked "cifar-10-batches-py"); without it, it makes coloured squares of its own.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, pictures):
        x = self.pool(functional.relu(self.conv1(pictures)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.flatten(1)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


def made(rows, seed):
    """Noise with a brighter square, whose place and colour tell the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (rows,), generator=generator)
    pictures = torch.randn(rows, 3, 32, 32, generator=generator) * 0.3
    for picture, label in zip(pictures, labels.tolist(), strict=True):
        picture[label % 3, 3 * label : 3 * label + 5, 3 * label : 3 * label + 5] += 2
    return TensorDataset(pictures, labels)


def read(directory, names):
    pictures, labels = [], []
    for name in names:
        with (directory / name).open("rb") as file:
            batch = pickle.load(file, encoding="bytes")
        pictures.append(batch[b"data"])
        labels += batch[b"labels"]
    scaled = torch.from_numpy(np.concatenate(pictures)).float().view(-1, 3, 32, 32) / 255
    return TensorDataset((scaled - 0.5) / 0.5, torch.tensor(labels))


def train(model, device, loader, optimizer, criterion):
    model.train()
    total = 0.0
    for data, target in loader:
        data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
    return total / len(loader.dataset)


def test(model, device, loader, criterion):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += criterion(output, target).item() * len(target)
            correct += output.argmax(1).eq(target).sum().item()
    rows = len(loader.dataset)
    print(f"Test set: average loss: {loss / rows:.4f}, accuracy: {correct}/{rows} ({100 * correct / rows:.0f}%)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="directory with CIFAR-10's data_batch_1 to 5 and test_batch")
    parser.add_argument("--rows", type=int, default=1000, help="how many pictures to make where there is no --data")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    if args.data:
        training = read(args.data, [f"data_batch_{number}" for number in range(1, 6)])
        testing = read(args.data, ["test_batch"])
    else:
        training, testing = made(args.rows, 1), made(args.rows // 5, 2)
    options = {"num_workers": args.workers, "pin_memory": torch.cuda.is_available()}
    train_loader = DataLoader(training, args.batch_size, shuffle=True, **options)
    test_loader = DataLoader(testing, args.batch_size, **options)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net()
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)
    model.to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(1, args.epochs + 1):
        loss = train(model, device, train_loader, optimizer, criterion)
        print(f"Epoch {epoch}: training loss {loss:.4f}")
        test(model, device, test_loader, criterion)


if __name__ == "__main__":
    main()
