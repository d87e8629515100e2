"""The lines that a rank prints about the split, each into the log of the device it is about."""

from typing import Literal

import torch

from jobs.telemetry import Shape

#: Under "auto" every line is printed for so many steps, and later only where a shape changes.
AUTO_STEPS = 1_000

Observe = Literal["auto", "every", "off"]


class ShardLines:
    """Prints `In Model: ...` per shard and `Outside: ...` per batch, in the words of PyTorch's own tutorial."""

    def __init__(self, observe: Observe, module: str) -> None:
        self._observe = observe
        self._where = f"In {module or 'Model'}:"
        self._last: dict[int, tuple[Shape | None, Shape | None]] = {}

    def shard(self, position: int, step: int, given: Shape | None, returned: Shape | None) -> None:
        """Called in the thread of the device at `position`, so that the line lands in its log."""
        if self._due(position, step, (given, returned)):
            print(f"{self._where} input size {_size(given)} output size {_size(returned)}")

    def batch(self, step: int, given: Shape | None, returned: Shape | None) -> None:
        if self._due(-1, step, (given, returned)):
            print(f"Outside: input size {_size(given)} output_size {_size(returned)}")

    def _due(self, key: int, step: int, shapes: tuple[Shape | None, Shape | None]) -> bool:
        if self._observe == "off":
            return False
        changed = self._last.get(key) != shapes
        self._last[key] = shapes
        return self._observe == "every" or step < AUTO_STEPS or changed


def _size(shape: Shape | None) -> str:
    return "unknown" if shape is None else str(torch.Size(shape))
