"""The devices of a rehearsal: their number, the current one, and what was put on which."""

import os
import threading
from functools import cached_property
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

CPU = torch.device("cpu")
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Where `VirtualDevices.placed` has a tensor that is on the CPU for the program too.
ON_CPU = -1


class VirtualDevices:
    """`all_devices` is what the job has; a program that sets CUDA_VISIBLE_DEVICES before it first asks sees fewer.

    `placed` knows where the program put tensors: moved, made there, or parameters and buffers of a module that was
    moved. What is computed from them is not followed: it is taken to be on the current device.
    """

    def __init__(self, count: int, where: str) -> None:
        self.all_devices = count
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
            return self.all_devices
        visible = 0
        for entry in asked.split(","):
            if not entry.strip().isdecimal() or int(entry) >= self.all_devices:
                break
            visible += 1
        return visible

    @property
    def current(self) -> int:
        """The current device of this thread; each thread begins with the first."""
        return getattr(self._thread, "index", 0)

    def set_current(self, index: int) -> None:
        """Make a device this thread's current one. As in torch, a negative index changes nothing."""
        if index >= 0:
            self._thread.index = self.check_index(index)

    def check_index(self, index: int) -> int:
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

    def named_index(self, device: object) -> int | None:
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
            return self.check_index(self.current if device.index is None else device.index)
        if isinstance(device, int) and not isinstance(device, bool):
            return self.check_index(device if device >= 0 else self.current)  # -1: of a tensor that was computed
        return None

    def index_of(self, device: object = None) -> int:
        """The index of a device given in any way that torch.cuda takes; None is the current one.

        Raises:
            ValueError: it is no CUDA device.
        """
        if device is None:
            return self.check_index(self.current)
        found = self.named_index(device)
        if found is None:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return found

    def put_on(self, value: Any, index: int) -> Any:
        """Record that `value`, if it is a tensor, was put on a device. Returns `value`."""
        if isinstance(value, torch.Tensor):
            self.placed[value] = index
            self._used = self._used or index != ON_CPU
        return value

    def recorded_device(self, value: Any) -> int | None:
        """The device that a tensor was put on, `ON_CPU`, or None where that is not known."""
        found: int | None = self.placed.get(value)
        return found

    def likely_device(self, value: torch.Tensor) -> int:
        """Where a tensor would be on a machine with GPUs, as far as that can be told; `ON_CPU` is no device.

        Of a program that uses devices, what is not known has mostly been computed on one.
        """
        found = self.recorded_device(value)
        if found is not None:
            return found
        return ON_CPU if isinstance(value, torch.nn.Parameter) or not self._used else self.current
