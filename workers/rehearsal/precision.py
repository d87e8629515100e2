"""Mixed precision: autocast for "cuda" becomes autocast for the CPU, in bfloat16.

float16 becomes bfloat16 as well. CPUs without instructions for float16 compute it ten to a hundred times slower than
float32 (measured: a product of 512 x 512 takes 113 ms instead of 16) and lack some of its kernels (LSTM). What a
program asks about autocast is answered as it set it; gradients are scaled as it scales them.

LSTM and GRU compute in that type, too, as on a GPU. torch's autocast for the CPU leaves a GRU in float32, and an LSTM
fails under it on processors whose oneDNN has no bfloat16 (those without AVX-512), though torch has a kernel for them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import _VF
from torch.amp import autocast_mode, grad_scaler

from workers.rehearsal.patching import Function, wrap_attribute


def replace_autocast() -> None:
    wrap_attribute(autocast_mode.autocast, "__init__", _wrap_autocast_init)
    wrap_attribute(autocast_mode.autocast, "__enter__", _wrap_autocast_enter)
    wrap_attribute(autocast_mode.autocast, "__exit__", _wrap_autocast_exit)
    wrap_attribute(grad_scaler.GradScaler, "__init__", _wrap_grad_scaler_init)
    for name in ("lstm", "gru"):
        wrap_attribute(_VF, name, _wrap_recurrent)


def _wrap_autocast_init(original: Function) -> Function:
    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        on_cuda = device_type == "cuda"
        asked = dtype
        if on_cuda:
            asked = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            dtype = torch.bfloat16 if asked is torch.float16 else asked
        original(self, "cpu" if on_cuda else device_type, dtype, *args, **kwargs)
        self.rehearsed_dtype = asked if on_cuda else None

    return init


def _wrap_autocast_enter(original: Function) -> Function:
    """Also sets what is asked of CUDA's state, by programs and by torch's `custom_fwd`. It changes no computation."""

    def enter(self: Any) -> Any:
        if self.rehearsed_dtype is not None:
            before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            self.rehearsed_before = [*getattr(self, "rehearsed_before", []), before]
            torch.set_autocast_enabled("cuda", self._enabled)
            torch.set_autocast_dtype("cuda", self.rehearsed_dtype)
        return original(self)

    return enter


def _wrap_autocast_exit(original: Function) -> Function:
    def leave(self: Any, *exc: Any) -> Any:
        if self.rehearsed_dtype is not None:
            enabled, dtype = self.rehearsed_before.pop()
            torch.set_autocast_enabled("cuda", enabled)
            torch.set_autocast_dtype("cuda", dtype)
        return original(self, *exc)

    return leave


def _wrap_grad_scaler_init(original: Function) -> Function:
    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device == "cuda" else device, *args, **kwargs)

    return init


def _wrap_recurrent(original: Function) -> Function:
    def compute(*args: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return original(*args)
        lower = [_cast(each, torch.get_autocast_dtype("cpu")) for each in args]
        with torch.autocast("cpu", enabled=False):
            return original(*lower)

    return compute


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Tensors of floating point numbers in `dtype`, also those in a sequence; everything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, Sequence):
        return type(value)(_cast(each, dtype) for each in value)  # type: ignore[call-arg]
    return value
