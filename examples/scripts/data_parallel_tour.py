"""A hundred rows in batches of thirty, through a linear layer under nn.DataParallel: every replica says what it got."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

INPUT_SIZE, OUTPUT_SIZE = 5, 2


class RandomDataset(Dataset):
    def __init__(self, size, length):
        self.rows = torch.randn(length, size)

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self):
        return len(self.rows)


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
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=30)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--device-ids", type=int, nargs="+", help="devices to use; without it, all")
    parser.add_argument("--output-device", type=int, help="where outputs are gathered; without it, the first device")
    parser.add_argument("--dim", type=int, default=0, help="the dimension to split")
    args = parser.parse_args()

    torch.manual_seed(0)
    first = args.device_ids[0] if args.device_ids else 0
    device = torch.device(f"cuda:{first}" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(RandomDataset(INPUT_SIZE, args.rows), args.batch_size, shuffle=True, num_workers=args.workers)

    model = Model()
    if torch.cuda.device_count() > 1:
        print("Let's use", torch.cuda.device_count(), "GPUs!")
        model = nn.DataParallel(model, args.device_ids, args.output_device, args.dim)
    model.to(device)

    for batch in loader:
        rows = batch.to(device)
        output = model(rows)
        print("Outside: input size", rows.size(), "output_size", output.size())


if __name__ == "__main__":
    main()
