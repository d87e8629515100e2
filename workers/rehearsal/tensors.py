"""Device arguments: what a program puts on a virtual device is on the CPU.

`tensor.device` is "cpu", since torch's own code decides by it. `tensor.is_cuda` and `get_device()` answer as for a GPU,
for the assertions that scripts make, and because scripts split only what `is_cuda`; to torch's own code they answer
"cpu", too.
"""

import functools
import itertools
import sys
from typing import Any

import torch
from torch import nn
from torch.utils import _device as default_device

from workers.rehearsal.devices import CPU, ON_CPU, VirtualDevices
from workers.rehearsal.patching import Function, wrap_attribute

#: Without a device, what these make is where the tensor is that they are given.
LIKE = (
    "as_tensor",
    "asarray",
    *(f"{name}_like" for name in ("empty", "full", "ones", "rand", "randint", "randn", "zeros")),
)
FFT_FACTORIES = ("fftfreq", "rfftfreq")
NESTED_FACTORIES = ("as_nested_tensor", "nested_tensor")
METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
TYPES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
OLD_PREFIX = "torch.cuda."


def replace_device_arguments(devices: VirtualDevices) -> None:
    _wrap_factories(devices)
    _wrap_tensor_methods(devices)
    _wrap_module_methods(devices)
    _wrap_tensor_types(devices)
    _wrap_torch_load(devices)
    _wrap_default_device(devices)
    torch.Generator = _generator_class(devices)  # type: ignore[misc]


# -- functions that make tensors -------------------------------------------------------------------


def _wrap_factories(devices: VirtualDevices) -> None:
    constructors = default_device._device_constructors()  # torch keeps this set of its own: it must not meet ours
    named = {name for made in constructors if getattr(torch, name := made.__name__, None) is made}
    for owner, names, from_nothing in (
        (torch, {"normal", *named}.difference(LIKE), True),
        (torch, LIKE, False),
        (torch.fft, FFT_FACTORIES, False),
        (torch.nested, NESTED_FACTORIES, False),
        (torch.Tensor, METHODS, False),
    ):
        landing = functools.partial(_wrap_factory, devices=devices, from_nothing=from_nothing)
        for name in names:
            wrap_attribute(owner, name, landing)
            if owner is torch and hasattr(torch, name):
                _register_with_compilers(getattr(torch, name), name)
    wrap_attribute(torch, "from_numpy", lambda original: lambda array: devices.put_on(original(array), ON_CPU))


def _wrap_factory(original: Function, devices: VirtualDevices, *, from_nothing: bool) -> Function:
    """`from_nothing`: what is made without naming a device is on the CPU, and not where another tensor is."""

    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        index = devices.named_index(device)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if index is not None:
            kwargs["device"] = CPU
        elif from_nothing and device is None and default_device.CURRENT_DEVICE is None:
            index = ON_CPU
        made = original(*args, **kwargs)
        return made if index is None else devices.put_on(made, index)

    return make


def _register_with_compilers(function: Any, name: str) -> None:
    """What knows torch's functions by identity, and may have looked at them already, must know ours."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]
    builtins: Any = sys.modules.get("torch.jit._builtins")
    if builtins is not None:
        builtins._register_builtin(function, f"aten::{name}")


# -- tensors that move -----------------------------------------------------------------------------


def _wrap_tensor_methods(devices: VirtualDevices) -> None:
    tensor: Any = torch.Tensor
    wrap_attribute(tensor, "to", lambda original: _wrap_to(original, devices))
    wrap_attribute(tensor, "get_device", lambda original: _wrap_get_device(original, devices))
    tensor.cuda = _to_cuda(devices)
    tensor.cpu = _to_cpu(devices)
    tensor.pin_memory = lambda self, device=None: self
    tensor.record_stream = lambda self, stream: None
    tensor.is_cuda = property(_is_cuda(tensor.is_cuda, devices))
    for kind in (tensor, nn.Parameter):
        wrap_attribute(kind, "__deepcopy__", lambda original: _wrap_deepcopy(original, devices))
    parameter: Any = nn.Parameter
    parameter.__new__ = _wrap_parameter_new(parameter.__new__, devices)
    for storage in (torch.UntypedStorage, torch.TypedStorage):
        wrap_attribute(storage, "cuda", lambda original: lambda self, *args, **kwargs: self)
        wrap_attribute(storage, "pin_memory", lambda original: lambda self, *args, **kwargs: self)


def _wrap_to(original: Function, devices: VirtualDevices) -> Function:
    """`to` of tensors and of modules."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else kwargs.get("other"))
        index = _target_index(target, devices)
        if index is None:
            moved = original(self, *args, **kwargs)
            return _put_moved_on(self, moved, ON_CPU, devices) if _is_cpu(target, devices) else moved
        if "device" in kwargs:
            kwargs["device"] = CPU
        elif not isinstance(target, torch.Tensor):
            args = (CPU, *args[1:])
        return _put_moved_on(self, original(self, *args, **kwargs), index, devices)

    return to


def _target_index(target: Any, devices: VirtualDevices) -> int | None:
    """The virtual device that a call of `to` names, by itself or by a tensor that is there."""
    if not isinstance(target, torch.Tensor):
        return devices.named_index(target)
    index = devices.recorded_device(target)
    return None if index == ON_CPU else index


def _is_cpu(target: Any, devices: VirtualDevices) -> bool:
    if isinstance(target, torch.Tensor):
        return devices.recorded_device(target) == ON_CPU
    return isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"


def _put_moved_on(before: Any, moved: Any, index: int, devices: VirtualDevices) -> Any:
    """A move to another device makes a copy: what is done to it in place must not reach the tensor it came from."""
    if isinstance(moved, nn.Module):
        return _put_module_on(moved, index, devices)
    if moved is before and devices.recorded_device(before) != index:
        moved = before.clone()
    return devices.put_on(moved, index)


def _to_cuda(devices: VirtualDevices) -> Function:
    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        return self.to(torch.device("cuda", devices.index_of(device)), memory_format=memory_format)

    return cuda


def _to_cpu(devices: VirtualDevices) -> Function:
    """A copy, as from a device: a `state_dict` kept with `.cpu()` must not follow the training."""

    def cpu(self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        return self.to(CPU, memory_format=memory_format)

    return cpu


def _wrap_get_device(original: Function, devices: VirtualDevices) -> Function:
    def get_device(self: torch.Tensor) -> int:
        found: int = original(self) if _called_by_torch() else devices.likely_device(self)
        return found

    return get_device


def _is_cuda(original: Any, devices: VirtualDevices) -> Function:
    def is_cuda(self: torch.Tensor) -> bool:
        return bool(original.__get__(self)) or (not _called_by_torch() and devices.likely_device(self) != ON_CPU)

    return is_cuda


def _wrap_deepcopy(original: Function, devices: VirtualDevices) -> Function:
    def deepcopy(self: torch.Tensor, memo: Any) -> Any:
        where = devices.recorded_device(self)
        copy = original(self, memo)
        return copy if where is None else devices.put_on(copy, where)

    return deepcopy


def _wrap_parameter_new(original: Function, devices: VirtualDevices) -> Any:
    """A parameter is where the tensor is that it is made of."""

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        where = None if data is None else devices.recorded_device(data)
        made = original(cls, data, requires_grad)
        return made if where is None else devices.put_on(made, where)

    return staticmethod(new)


def _called_by_torch() -> bool:
    """Whether torch itself has called the function that calls this one."""
    return str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0] == "torch"


# -- modules ---------------------------------------------------------------------------------------


def _wrap_module_methods(devices: VirtualDevices) -> None:
    """A module that moves keeps its parameters and buffers, with new memory behind them."""
    module: Any = nn.Module
    for name in ("to", "to_empty"):
        wrap_attribute(module, name, lambda original: _wrap_to(original, devices))
    module.cuda = lambda self, device=None: _put_module_on(self, devices.index_of(device), devices)
    wrap_attribute(module, "cpu", lambda original: lambda self: _put_module_on(original(self), ON_CPU, devices))


def _put_module_on(module: Any, index: int, devices: VirtualDevices) -> Any:
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        if devices.recorded_device(tensor) not in (None, index):
            tensor.data = tensor.data.clone()
        devices.put_on(tensor, index)
    return module


# -- types by their old names ----------------------------------------------------------------------


def _wrap_tensor_types(devices: VirtualDevices) -> None:
    for kind in TYPES:
        setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    wrap_attribute(torch.Tensor, "type", lambda original: _wrap_tensor_type(original, devices))
    wrap_attribute(torch, "set_default_tensor_type", lambda original: lambda kind: original(_on_cpu(kind)))


def _wrap_tensor_type(original: Function, devices: VirtualDevices) -> Function:
    def type_(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(dtype, str) or not dtype.startswith(OLD_PREFIX):
            return original(self, dtype, *args, **kwargs)
        return _put_moved_on(self, original(self, _on_cpu(dtype), *args, **kwargs), devices.index_of(), devices)

    return type_


def _on_cpu(kind: Any) -> Any:
    """ "torch.cuda.FloatTensor" -> "torch.FloatTensor"; types themselves are the CPU's already."""
    return kind.replace(OLD_PREFIX, "torch.") if isinstance(kind, str) else kind


# -- files, generators, defaults -------------------------------------------------------------------


def _wrap_torch_load(devices: VirtualDevices) -> None:
    """A file may have been written on a GPU, and may be asked for on one."""

    def loading(original: Function) -> Function:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(map_location, (str, torch.device, int)):
                devices.named_index(map_location)  # one that is not there is an error here too
            meta = map_location == "meta" or map_location == torch.device("meta")
            return original(f, map_location if callable(map_location) or meta else CPU, *args, **kwargs)

        return load

    wrap_attribute(torch, "load", loading)
    wrap_attribute(torch.serialization, "load", lambda original: torch.load)


def _wrap_default_device(devices: VirtualDevices) -> None:
    """`torch.set_default_device` and `with torch.device(...)`, which both enter this mode."""

    def entering(original: Function) -> Function:
        def enter(self: Any, device: Any) -> None:
            original(self, device if devices.named_index(device) is None else CPU)

        return enter

    wrap_attribute(default_device.DeviceContext, "__init__", entering)


def _generator_class(devices: VirtualDevices) -> Any:
    generator = torch._C.Generator

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, generator)

    class Generator(metaclass=Kind):
        """torch's generators, where one for a virtual device draws on the CPU."""

        def __new__(cls, device: Any = CPU) -> Any:
            return generator(device if devices.named_index(device) is None else CPU)

    return Generator
