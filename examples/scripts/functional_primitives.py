"""DataParallel by hand: replicate, scatter, parallel_apply and gather, called one by one on all GPUs."""

import torch
from torch import nn


def data_parallel(module, batch, device_ids, output_device=None):
    if not device_ids:
        return module(batch)
    if output_device is None:
        output_device = device_ids[0]
    replicas = nn.parallel.replicate(module, device_ids)
    shards = nn.parallel.scatter(batch, device_ids)
    replicas = replicas[: len(shards)]
    outputs = nn.parallel.parallel_apply(replicas, shards)
    return nn.parallel.gather(outputs, output_device)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, rows):
        output = self.fc(rows)
        print("\tIn Model: input size", rows.size(), "output size", output.size())
        return output


torch.manual_seed(0)
device_ids = list(range(torch.cuda.device_count()))
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randn(100, 5).cuda()

for batch in rows.split(30):
    optimizer.zero_grad()
    output = data_parallel(model, batch, device_ids)
    loss = output.square().mean()
    loss.backward()
    optimizer.step()
    print(f"Outside: input size {batch.size()} output_size {output.size()} loss {loss.item():.6f}")
