"""Training that goes on where it was interrupted: what a script needs for that is marked, from (1) to (5).

Plain: python goes_on.py
"""

import argparse

import torch
from torch import nn

from shardyard import job  # (1)

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps from one checkpoint to the next")
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
rows = torch.randn(300, 10)
labels = (rows.sum(1) > 0).long()

first = 0
if resume := job.resume_dir():  # (2)
    saved = torch.load(resume / "state.pt", weights_only=True)  # (3)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]

for step in range(first, args.steps):
    batch = torch.arange(30) + 30 * (step % 10)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(rows[batch].to(device)), labels[batch].to(device))
    loss.backward()
    optimizer.step()
    print(f"step {step + 1} loss {loss.item():.17g}")
    stop = job.should_stop()  # (4)
    if stop or (step + 1) % args.every == 0 or step + 1 == args.steps:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "state.pt")
        job.checkpoint("state.pt")  # (5)
    if stop:
        break
