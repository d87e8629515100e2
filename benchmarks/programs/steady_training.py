"""Trains a small network on one thread until it is ended. Each half second it prints the time and its steps/s."""

import time

import torch


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, begun = 0, time.monotonic()
    while True:
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()
        steps += 1
        if (passed := time.monotonic() - begun) >= 0.5:
            print(time.time(), steps / passed, flush=True)
            steps, begun = 0, time.monotonic()


if __name__ == "__main__":
    main()
