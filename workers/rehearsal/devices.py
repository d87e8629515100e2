"""The devices of a rehearsal: how many there are, which one is current, and what was put on which."""

import os
import threading
from functools import cached_property
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

CPU = torch.device("cpu")
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Where `Devices.placed` has a tensor that is on the CPU for the program too.
ON_CPU = -1


class Devices:
    """`whole` is what the job has; a program that sets CUDA_VISIBLE_DEVICES before it first looks sees fewer.

    `placed` knows where the program put tensors: moved, made there, or parameters and buffers of a module that was
    moved. What is computed from them is not followed: it is taken to be on the current device.
    """

    def __init__(self, count: int, where: str) -> None:
        self.whole = count
        self._where = where
        self._given = os.environ.get(VISIBLE)
        self._thread = threading.local()
        self._used = False
        self.placed: Any = WeakTensorKeyDictionary()

    @cached_property
    def count(self) -> int:
        """As CUDA has it: read once, and what follows an unknown index in the variable does not count."""
        asked = os.environ.get(VISIBLE)
        if asked is None or asked == self._given:
            return self.whole
        visible = 0
        for entry in asked.split(","):
            if not entry.strip().isdecimal() or int(entry) >= self.whole:
                break
            visible += 1
        return visible

    @property
    def current(self) -> int:
        """The current device of this thread; each thread begins with the first."""
        return getattr(self._thread, "index", 0)

    def select(self, index: int) -> None:
        """Make a device this thread's current one. As in torch, a negative index changes nothing."""
        if index >= 0:
            self._thread.index = self.checked(index)

    def checked(self, index: int) -> int:
        """
        Raises:
            RuntimeError: there is no such device, or none at all.
        """
        if self.count == 0:
            raise RuntimeError(f"No CUDA GPUs are available: {VISIBLE} is {os.environ.get(VISIBLE)!r}")
        if index >= self.count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: cuda:{index} was asked for in {self._where}; "
                f"this process sees {self.count}"
            )
        return index

    def asked(self, device: object) -> int | None:
        """The index of the virtual device that an argument names, and None where it names none of them."""
        if device is None or isinstance(device, torch.dtype):
            return None
        if isinstance(device, str):
            if not device.startswith("cuda"):
                return None
            device = torch.device(device)
        if isinstance(device, torch.device):
            if device.type != "cuda":
                return None
            return self.checked(self.current if device.index is None else device.index)
        if isinstance(device, int) and not isinstance(device, bool):
            return self.checked(device if device >= 0 else self.current)  # -1: of a tensor that was computed
        return None

    def index(self, device: object = None) -> int:
        """The index of a device given in any way that torch.cuda takes; None is the current one.

        Raises:
            ValueError: it is no CUDA device.
        """
        if device is None:
            return self.checked(self.current)
        found = self.asked(device)
        if found is None:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return found

    def place(self, value: Any, index: int) -> Any:
        """Remember that `value`, if it is a tensor, was put on a device; it is given back."""
        if isinstance(value, torch.Tensor):
            self.placed[value] = index
            self._used = self._used or index != ON_CPU
        return value

    def of(self, value: Any) -> int | None:
        """The device that a tensor was put on, `ON_CPU`, or None where that is not known."""
        found: int | None = self.placed.get(value)
        return found

    def believed(self, value: torch.Tensor) -> int:
        """Where a tensor would be on a machine with GPUs, as far as that can be told; `ON_CPU` is no device.

        Of a program that uses devices, what is not known has mostly been computed on one.
        """
        found = self.of(value)
        if found is not None:
            return found
        return ON_CPU if isinstance(value, torch.nn.Parameter) or not self._used else self.current
