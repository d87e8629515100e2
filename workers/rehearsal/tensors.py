"""The devices that a program names: whatever it puts on a virtual device lands on the CPU.

`tensor.device` tells the truth, "cpu", since torch's own code decides by it. `tensor.is_cuda` and `get_device()` are
answered as GPUs would, for the assertions that scripts make, and because scripts split only what `is_cuda`; torch's
own code is told the truth there too.
"""

import functools
import itertools
import sys
from typing import Any

import torch
from torch import nn
from torch.utils import _device as default_device

from workers.rehearsal.devices import CPU, ON_CPU, Devices
from workers.rehearsal.patching import Function, wrap

FACTORIES = (
    "arange",
    "bartlett_window",
    "blackman_window",
    "empty",
    "empty_permuted",
    "empty_quantized",
    "empty_strided",
    "eye",
    "full",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "range",
    "scalar_tensor",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
    "zeros",
)
LIKE = (
    "as_tensor",
    "asarray",
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
FFT_FACTORIES = ("fftfreq", "rfftfreq")
NESTED_FACTORIES = ("as_nested_tensor", "nested_tensor")
METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
TYPES = (
    "BFloat16Tensor",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
)
OLD_PREFIX = "torch.cuda."


def act(devices: Devices) -> None:
    _make_factories_land(devices)
    _make_tensors_land(devices)
    _make_modules_land(devices)
    _make_types_land(devices)
    _make_files_land(devices)
    _make_defaults_land(devices)
    torch.Generator = _generators(devices)  # type: ignore[misc]


# -- functions that make tensors -------------------------------------------------------------------


def _make_factories_land(devices: Devices) -> None:
    default_device._device_constructors()  # torch keeps this set of its own functions: it must not meet ours
    for owner, names, from_nothing in (
        (torch, FACTORIES, True),
        (torch, LIKE, False),
        (torch.fft, FFT_FACTORIES, False),
        (torch.nested, NESTED_FACTORIES, False),
        (torch.Tensor, METHODS, False),
    ):
        landing = functools.partial(_landing, devices=devices, from_nothing=from_nothing)
        for name in names:
            wrap(owner, name, landing)
            _tell_compilers(getattr(owner, name, None), name, is_function=owner is torch)
    wrap(torch, "from_numpy", lambda original: lambda array: devices.place(original(array), ON_CPU))


def _landing(original: Function, devices: Devices, *, from_nothing: bool) -> Function:
    """`from_nothing`: what is made without naming a device is on the CPU, and not where another tensor is."""

    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        index = devices.asked(device)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if index is not None:
            kwargs["device"] = CPU
        elif from_nothing and device is None and default_device.CURRENT_DEVICE is None:
            index = ON_CPU
        made = original(*args, **kwargs)
        return made if index is None else devices.place(made, index)

    return make


def _tell_compilers(function: Any, name: str, *, is_function: bool) -> None:
    """What knows torch's functions by identity, and may have looked at them already, must know ours."""
    if not is_function or function is None:
        return
    if "torch._dynamo" in sys.modules:
        torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]
    builtins: Any = sys.modules.get("torch.jit._builtins")
    if builtins is not None:
        builtins._register_builtin(function, f"aten::{name}")


# -- tensors that move -----------------------------------------------------------------------------


def _make_tensors_land(devices: Devices) -> None:
    tensor: Any = torch.Tensor
    wrap(tensor, "to", lambda original: _moving(original, devices))
    wrap(tensor, "get_device", lambda original: _telling_device(original, devices))
    tensor.cuda = _to_cuda(devices)
    tensor.cpu = _to_cpu(devices)
    tensor.pin_memory = lambda self, device=None: self
    tensor.record_stream = lambda self, stream: None
    tensor.is_cuda = property(_is_cuda(tensor.is_cuda, devices))
    for kind in (tensor, nn.Parameter):
        wrap(kind, "__deepcopy__", lambda original: _copying(original, devices))
    parameter: Any = nn.Parameter
    parameter.__new__ = _wrapping(parameter.__new__, devices)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        wrap(storage, "cuda", lambda original: lambda self, *args, **kwargs: self)
        wrap(storage, "pin_memory", lambda original: lambda self, *args, **kwargs: self)


def _moving(original: Function, devices: Devices) -> Function:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else kwargs.get("other"))
        index = _target(target, devices)
        if index is None:
            moved = original(self, *args, **kwargs)
            return _arrived(self, moved, ON_CPU, devices) if _is_cpu(target, devices) else moved
        if "device" in kwargs:
            kwargs["device"] = CPU
        elif not isinstance(target, torch.Tensor):
            args = (CPU, *args[1:])
        return _arrived(self, original(self, *args, **kwargs), index, devices)

    return to


def _target(target: Any, devices: Devices) -> int | None:
    """The virtual device that a call of `to` names, by itself or by a tensor that is there."""
    if not isinstance(target, torch.Tensor):
        return devices.asked(target)
    index = devices.of(target)
    return None if index == ON_CPU else index


def _is_cpu(target: Any, devices: Devices) -> bool:
    if isinstance(target, torch.Tensor):
        return devices.of(target) == ON_CPU
    return isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"


def _arrived(before: torch.Tensor, moved: torch.Tensor, index: int, devices: Devices) -> Any:
    """A move to another device makes a copy: what is done to it in place must not reach the tensor it came from."""
    if moved is before and devices.of(before) != index:
        moved = before.clone()
    return devices.place(moved, index)


def _to_cuda(devices: Devices) -> Function:
    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        return self.to(torch.device("cuda", devices.index(device)), memory_format=memory_format)

    return cuda


def _to_cpu(devices: Devices) -> Function:
    """A copy, as from a device: a `state_dict` kept with `.cpu()` must not follow the training."""

    def cpu(self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return self.to(CPU, memory_format=memory_format)

    return cpu


def _telling_device(original: Function, devices: Devices) -> Function:
    def get_device(self: torch.Tensor) -> int:
        found: int = original(self) if _torch_asks() else devices.believed(self)
        return found

    return get_device


def _is_cuda(original: Any, devices: Devices) -> Function:
    def is_cuda(self: torch.Tensor) -> bool:
        return bool(original.__get__(self)) or (not _torch_asks() and devices.believed(self) != ON_CPU)

    return is_cuda


def _copying(original: Function, devices: Devices) -> Function:
    def deepcopy(self: torch.Tensor, memo: Any) -> Any:
        where = devices.of(self)
        copy = original(self, memo)
        return copy if where is None else devices.place(copy, where)

    return deepcopy


def _wrapping(original: Function, devices: Devices) -> Any:
    """A parameter is where the tensor is that it is made of."""

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        where = None if data is None else devices.of(data)
        made = original(cls, data, requires_grad)
        return made if where is None else devices.place(made, where)

    return staticmethod(new)


def _torch_asks() -> bool:
    """Whether the one who called our caller is torch itself."""
    return str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0] == "torch"


# -- modules ---------------------------------------------------------------------------------------


def _make_modules_land(devices: Devices) -> None:
    """A module that moves keeps its parameters and buffers, with new memory behind them."""
    module: Any = nn.Module
    wrap(module, "to", lambda original: _moving_module(original, devices))
    wrap(module, "to_empty", lambda original: _moving_module(original, devices))
    module.cuda = lambda self, device=None: _placed(self, devices.index(device), devices)
    wrap(module, "cpu", lambda original: lambda self: _placed(original(self), ON_CPU, devices))


def _moving_module(original: Function, devices: Devices) -> Function:
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else None)
        index = _target(target, devices)
        if index is None:
            moved = original(self, *args, **kwargs)
            return _placed(moved, ON_CPU, devices) if _is_cpu(target, devices) else moved
        if "device" in kwargs:
            kwargs["device"] = CPU
        elif not isinstance(target, torch.Tensor):
            args = (CPU, *args[1:])
        return _placed(original(self, *args, **kwargs), index, devices)

    return to


def _placed(module: Any, index: int, devices: Devices) -> Any:
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if devices.of(tensor) not in (None, index):
            tensor.data = tensor.data.clone()
        devices.place(tensor, index)
    return module


# -- types by their old names ----------------------------------------------------------------------


def _make_types_land(devices: Devices) -> None:
    for name in TYPES:
        setattr(torch.cuda, name, getattr(torch, name))
    wrap(torch.Tensor, "type", lambda original: _typing(original, devices))
    wrap(torch, "set_default_tensor_type", lambda original: lambda kind: original(_on_cpu(kind)))


def _typing(original: Function, devices: Devices) -> Function:
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(dtype, str) or not dtype.startswith(OLD_PREFIX):
            return original(self, dtype, *args, **kwargs)
        return _arrived(self, original(self, _on_cpu(dtype), *args, **kwargs), devices.index(), devices)

    return type_


def _on_cpu(kind: Any) -> Any:
    """ "torch.cuda.FloatTensor" -> "torch.FloatTensor"; types themselves are the CPU's already."""
    return kind.replace(OLD_PREFIX, "torch.") if isinstance(kind, str) else kind


# -- files, generators, defaults -------------------------------------------------------------------


def _make_files_land(devices: Devices) -> None:
    """A file may have been written on a GPU, and may be asked for on one."""

    def loading(original: Function) -> Function:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(map_location, (str, torch.device, int)):
                devices.asked(map_location)  # one that is not there is an error here too
            meta = map_location == "meta" or map_location == torch.device("meta")
            return original(f, map_location if callable(map_location) or meta else CPU, *args, **kwargs)

        return load

    wrap(torch, "load", loading)
    wrap(torch.serialization, "load", lambda original: torch.load)


def _make_defaults_land(devices: Devices) -> None:
    """`torch.set_default_device` and `with torch.device(...)`, which both enter this mode."""

    def entering(original: Function) -> Function:
        def enter(self: Any, device: Any) -> None:
            original(self, device if devices.asked(device) is None else CPU)

        return enter

    wrap(default_device.DeviceContext, "__init__", entering)


def _generators(devices: Devices) -> Any:
    generator = torch._C.Generator

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, generator)

    class Generator(metaclass=Kind):
        """torch's generators, where one for a virtual device draws on the CPU."""

        def __new__(cls, device: Any = CPU) -> Any:
            return generator(device if devices.asked(device) is None else CPU)

    return Generator
