"""Counts the floating-point operations of one early step, once in a run.

The formulas are those of `torch.utils.flop_counter`: matrix products, convolutions and attention, as they are executed.
Its `FlopCounterMode` also hooks every module and tensor; the mode here only looks at operations on their way, so what a
program computes stays the same to the last bit, and nothing waits for a device. The mode is active in the calls of the
model and of backward alone. Where it would be in the way of something, or would not see everything, nothing is counted,
and a note says why. No torch here: it is imported when a step is counted.
"""

import functools
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec

from jobs.protocol.records import Step

if TYPE_CHECKING:
    from torch import nn

#: The field that notes of this module are about.
FIELD = "flop_per_step"

OWN_MODE = "the program is in a TorchDispatchMode of its own, beside which FLOP are not counted"
PROFILED = "a profile was being recorded in the step in which FLOP are counted"
COMPILED = "FLOP of compiled code (torch.compile, TorchScript) cannot be counted"
SHARDED = "FLOP are not counted where parameters are not plain tensors (FSDP, tensor parallelism, quantisation)"
TRANSFORMED = "FLOP are not counted in inference mode and within torch.func"
SEVERAL = "FLOP are not counted in a program with several optimizers, whose steps differ"
PLACED = "FLOP are not counted for a model whose parts are on different devices"
UNKNOWN = "the FLOP of {} are not known"
NO_BACKWARD = "no call of backward was seen in the step in which FLOP are counted"
NONE_SEEN = "no matrix product, convolution or attention was seen in the step that was counted"

#: Namespaces of operations that compute nothing without a formula, or are PyTorch's own.
_OWN_NAMESPACES = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "profiler"})
#: In the names of PyTorch's own operations that are worth counting and may have no formula.
_HEAVY = ("_rnn", "rnn_layer", "attention", "_mm", "convolution", "conv2d", "conv3d", "conv_tbc", "_trilinear")
#: What torch asks of tensors that are not its own; the next one in line answers.
_METADATA = frozenset(
    {
        *("sym_is_contiguous", "is_contiguous", "is_strides_like_format", "is_non_overlapping_and_dense"),
        *("size", "sym_size", "stride", "sym_stride", "storage_offset", "sym_storage_offset"),
        *("numel", "sym_numel", "dim", "layout"),
    }
)
#: The operations of the CPU that compute what others do.
_SAME_AS = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
}
#: Stands for all devices together, in backward.
JOINT = -1


class FlopCount:
    """Counts one step of one process, whose devices are numbered by `slots`."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._seen: Counter[tuple[str, int]] = Counter()  # by precision and slot
        self._modes: dict[int, Any] = {}  # by thread
        self._was_active = False
        self.refusal = ""  # why the count is not to be trusted

    def watch(self, slot: int, model: "nn.Module | None" = None) -> AbstractContextManager[None]:
        """The context for a call of `model`, or for a backward: it counts, unless that is not possible."""
        try:
            if threading.get_ident() not in self._modes:
                self.refuse(find_refusal(model))
            _mode_class()
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not reach the program)
            self.refuse(f"this version of torch does not let FLOP be counted: {type(error).__name__}: {error}"[:300])
        if self.refusal:
            return nullcontext()
        self._was_active = True
        return self.on(slot)

    @contextmanager
    def on(self, slot: int) -> Iterator[None]:
        """Count for a device what this thread, and backwards that it starts, compute in this context; with `JOINT`, for
        all that were counted for on their own."""
        thread = threading.get_ident()
        mode = self._modes.get(thread)
        if mode is not None:
            outer, mode.slot = mode.slot, slot
            try:
                yield
            finally:
                mode.slot = outer
            return
        mode = self._modes[thread] = _mode_class()(self, slot)
        try:
            with mode:
                yield
        finally:
            del self._modes[thread]

    def add(self, precision: str, slot: int, flop: int) -> None:
        self._seen[precision, slot] += flop

    def refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason

    def result(self) -> dict[str, tuple[int, ...]] | None:
        """By precision, the FLOP of each slot; empty where these are not known, as `refusal` says, and None where the
        step was not changed by counting either. What is known of all slots together is divided as forward was."""
        if not self.refusal and not any(self._seen.values()):
            self.refuse(NONE_SEEN)
        if self.refusal:
            return {} if self._was_active else None
        forward = [sum(flop for (_, at), flop in self._seen.items() if at == slot) for slot in range(self._slots)]
        precisions = dict.fromkeys(precision for precision, _ in self._seen)
        return {precision: self._by_slot(precision, forward) for precision in precisions}

    def _by_slot(self, precision: str, forward: list[int]) -> tuple[int, ...]:
        joint, whole = self._seen[precision, JOINT], sum(forward)
        parts = [joint * flop // whole for flop in forward] if whole else [0] * self._slots
        parts[0 if not whole else forward.index(max(forward))] += joint - sum(parts)
        return tuple(part + self._seen[precision, slot] for slot, part in enumerate(parts))


def find_refusal(model: "nn.Module | None") -> str:
    """Why the FLOP of a model cannot be counted here and now; "" where they can."""
    torch: Any = sys.modules["torch"]
    if torch._C._len_torch_dispatch_stack():
        return OWN_MODE
    if torch.autograd._profiler_enabled():
        return PROFILED
    if torch.is_inference_mode_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return TRANSFORMED
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters.get("frames"):
        return COMPILED
    return "" if model is None else _find_in_parts(torch, model)


def _find_in_parts(torch: Any, model: "nn.Module") -> str:
    for part in model.modules():
        if part._compiled_call_impl is not None or isinstance(part, torch.jit.ScriptModule):
            return COMPILED
        if type(part).__name__ in ("OptimizedModule", "FullyShardedDataParallel"):
            return COMPILED if type(part).__name__ == "OptimizedModule" else SHARDED
    plain = (torch.Tensor, torch.nn.Parameter)
    tensors: Iterable[Any] = (*model.parameters(), *model.buffers())
    return "" if all(type(one) in plain or type(one.data) is torch.Tensor for one in tensors) else SHARDED


def without_times(step: Step, flop: dict[str, tuple[int, ...]]) -> Step:
    """The record of a counted step."""
    none = (None,) * len(step.forward_ms)
    return msgspec.structs.replace(
        step,
        forward_ms=none,
        backward_ms=none,
        comm_ms=None,
        primitives=None,
        arrival_ms=(),
        optimizer_ms=None,
        whole_backward_ms=None,
        cycle_ms=None,
        flop=flop,
    )


@functools.cache
def _mode_class() -> Any:
    """The mode that looks at operations."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    formulas = _read_formulas(torch)

    class FlopMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        supports_higher_order_operators = True

        def __init__(self, count: FlopCount, slot: int) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.count, self.slot = count, slot

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            packet = getattr(func, "_overloadpacket", None)
            if packet is not None and func.namespace in ("aten", "prim") and packet.__name__ in _METADATA:
                return NotImplemented
            outputs = func(*args, **(kwargs or {}))
            formula = formulas.get(packet)
            try:
                if formula is not None:
                    flop = int(formula(*args, **(kwargs or {}), out_val=outputs))
                    self.count.add(_precision_of(torch, packet, args), self.slot, flop)
                elif _is_unknown(func):
                    self.count.refuse(UNKNOWN.format(func))
            except Exception as error:  # noqa: BLE001  (whatever it is, it must not reach the program)
                self.count.refuse(f"the FLOP of {func} could not be counted: {type(error).__name__}: {error}"[:300])
            return outputs

    return FlopMode


def _read_formulas(torch: Any) -> dict[Any, Any]:
    """Those of torch, by operation."""
    log = logging.getLogger("torch.utils.flop_counter")
    was_disabled, log.disabled = log.disabled, True  # it would warn on the program's stderr that triton is missing
    try:
        from torch.utils.flop_counter import flop_registry
    finally:
        log.disabled = was_disabled
    formulas = dict(flop_registry)
    for name, other in _SAME_AS.items():
        ours, theirs = getattr(torch.ops.aten, name, None), getattr(torch.ops.aten, other, None)
        if ours is not None and theirs in formulas:
            formulas.setdefault(ours, formulas[theirs])
    return formulas


def _is_unknown(func: Any) -> bool:
    """Whether an operation without a formula may compute much."""
    namespace, name = getattr(func, "namespace", ""), getattr(func, "__name__", "")
    if namespace not in _OWN_NAMESPACES:
        return True
    return any(part in name for part in _HEAVY)


def _precision_of(torch: Any, packet: Any, args: Any) -> str:
    """The name of the arithmetic that an operation is done in."""
    first = next(one for one in args if isinstance(one, torch.Tensor) and one.is_floating_point())
    name = str(first.dtype).removeprefix("torch.")
    if name == "float32" and first.is_cuda:
        return "tf32" if _allows_tf32(torch, is_convolution="conv" in packet.__name__) else name
    return "float8" if name.startswith("float8") else name


def _allows_tf32(torch: Any, *, is_convolution: bool) -> bool:
    backend: Any = torch.backends.cudnn if is_convolution else torch.backends.cuda.matmul
    return bool(backend.allow_tf32)
