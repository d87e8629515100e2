"""A model in two places: its embedding stays on the CPU, its recurrent layer is on the first GPU."""

import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class DistributedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 10)
        self.rnn = nn.LSTM(10, 10, batch_first=True).to(device)

    def forward(self, words):
        x = self.embedding(words)  # on the CPU
        x = x.to(device)
        output, _ = self.rnn(x)  # on the GPU
        return output


torch.manual_seed(0)
model = DistributedModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(0, 1000, (100, 7))

for batch in words.split(30):
    optimizer.zero_grad()
    output = model(batch)
    loss = (output - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"Outside: input size {batch.size()} output_size {output.size()} loss {loss.item():.6f}")
