"""nn.DataParallel around one block of a model: what is before and behind it sees whole batches, on the first GPU."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 20)

    def forward(self, x):
        print("\tIn Model: input size", x.size())
        return self.fc(x)


class DataParallelModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = nn.Linear(10, 20)
        self.block2 = nn.DataParallel(Block())
        self.block3 = nn.Linear(20, 20)

    def forward(self, x):
        x = self.block1(x)
        x = self.block2(x)
        return self.block3(x)


torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = DataParallelModel().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(100, 10)

for batch in rows.split(30):
    optimizer.zero_grad()
    loss = model(batch.to(device)).square().mean()
    loss.backward()
    optimizer.step()
    print(f"Outside: input size {batch.size()} loss {loss.item():.6f}")
