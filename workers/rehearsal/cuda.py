"""What torch.cuda and torch.accelerator answer about devices, their memory, their random numbers, and time.

A virtual device is called what it is, has the memory of the host (of which none is ever counted as used), and the
compute capability 8.0, so that scripts choose what current GPUs do: bfloat16 and TF32 are supported.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from workers.rehearsal.devices import VirtualDevices
from workers.rehearsal.errors import NotRehearsable
from workers.rehearsal.patching import Function

NAME = "virtual device (rehearsal)"
CAPABILITY = (8, 0)
NCCL_VERSION = (2, 21, 5)

FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
DTYPES = FLOATS | {torch.int64, torch.int32, torch.uint8, torch.bool}

#: Functions of torch.cuda, torch.cuda.memory and torch.accelerator.memory, with the value that each gives.
CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("empty_cache", "init", "ipc_collect", "reset_max_memory_cached", "reset_max_memory_allocated")),
    **{f"reset_{what}_{of}": None for what in ("peak", "accumulated") for of in ("memory_stats", "host_memory_stats")},
    **{f"{which}memory_{what}": 0 for which in ("", "max_") for what in ("allocated", "reserved", "cached")},
    "set_per_process_memory_fraction": None,
    "get_per_process_memory_fraction": 1.0,
    "memory_snapshot": [],
    "memory_summary": "virtual devices have no memory of their own",
    "list_gpu_processes": "virtual devices have no processes",
    "get_allocator_backend": "native",
    **dict.fromkeys(("is_bf16_supported", "is_tf32_supported", "can_device_access_peer"), True),
    "is_current_stream_capturing": False,
    "get_arch_list": [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"],
}
#: The same of torch.cuda.nvtx and torch.cuda.profiler: marks for a profiler that is not there.
NVTX: dict[str, Any] = {"range_push": 0, "range_pop": 0, "range_start": 0, "range_end": None, "mark": None}


def replace_cuda_api(devices: VirtualDevices) -> None:
    cuda: Any = torch.cuda
    for name, value in CONSTANTS.items():
        for owner in (cuda, cuda.memory, torch.accelerator.memory):
            if hasattr(owner, name):
                setattr(owner, name, _always(value))
    seeding = _random_functions(devices)
    for owner, answers in (
        (cuda, _device_functions(devices) | MEMORY_FUNCTIONS | _time_functions(devices) | seeding),
        (cuda.memory, MEMORY_FUNCTIONS),
        (cuda.random, seeding),
        (cuda.nvtx, {name: _always(value) for name, value in NVTX.items()} | {"range": _null_context}),
        (cuda.profiler, {"start": _always(None), "stop": _always(None), "profile": _null_context}),
        (cuda.nccl, {"version": _always(NCCL_VERSION)}),
        (torch.accelerator, _accelerator_functions(devices)),
        (torch.accelerator.memory, {"memory_stats": _empty_stats, "get_memory_info": _host_memory}),
    ):
        for name, answer in answers.items():
            setattr(owner, name, answer)
    cuda._lazy_init = _refuse_initialisation
    cuda.default_generators = tuple(torch.Generator() for _ in range(devices.all_devices))


def _always(value: Any) -> Function:
    return lambda *args, **kwargs: value


@contextmanager
def _null_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _refuse_initialisation() -> None:
    """torch calls this wherever it is asked for CUDA, in Python and in C++, also where we replace nothing."""
    raise NotRehearsable("This call, which goes to CUDA itself,")


# -- devices ---------------------------------------------------------------------------------------


#: What torch says of a device beside its name and its memory.
IDENTITY = {"major": CAPABILITY[0], "minor": CAPABILITY[1], "uuid": "", "gcnArchName": ""}
KIND = {"is_integrated": 0, "is_multi_gpu_board": 0, "L2_cache_size": 0, "regs_per_multiprocessor": 65536}
THREADS = {"multi_processor_count": 1, "warp_size": 32, "max_threads_per_multi_processor": 2048}
SHARED_MEMORY = {"per_block": 49152, "per_block_optin": 166912, "per_multiprocessor": 167936}
FIXED = IDENTITY | KIND | THREADS | {f"shared_memory_{part}": size for part, size in SHARED_MEMORY.items()}


def _properties_query(devices: VirtualDevices) -> Callable[..., SimpleNamespace]:
    def get(device: Any = None) -> SimpleNamespace:
        try:
            devices.index_of(device)
        except RuntimeError as error:
            raise AssertionError("Invalid device id") from error  # torch's words and class
        return SimpleNamespace(name=NAME, total_memory=_host_memory()[1], **FIXED)

    return get


def _device_functions(devices: VirtualDevices) -> dict[str, Any]:
    device, properties = _device_class(devices), _properties_query(devices)
    return {
        "is_available": lambda: devices.count > 0,
        "device_count": lambda: devices.count,
        "current_device": devices.index_of,
        "set_device": lambda device: devices.set_current(devices.index_of(device) if _names_one(device) else -1),
        "device": device,
        "device_of": lambda tensor: device(devices.likely_device(tensor)),
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: CAPABILITY if properties(device) else None,
        "get_device_properties": properties,
    }


def _names_one(device: Any) -> bool:
    return not isinstance(device, int) or device >= 0


def _device_class(devices: VirtualDevices) -> Any:
    class Current:
        """Within, another device is the current one; a negative index leaves it."""

        def __init__(self, device: Any = None) -> None:
            self.idx = devices.index_of(device) if _names_one(device) else -1
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = devices.current
            devices.set_current(self.idx)

        def __exit__(self, *exc: object) -> None:
            devices.set_current(self.prev_idx)

    return Current


# -- memory ----------------------------------------------------------------------------------------


def _host_memory(device: Any = None) -> tuple[int, int]:
    """The host's free and whole memory, in bytes."""
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def _empty_stats(device: Any = None) -> defaultdict[str, int]:
    return defaultdict(int)


MEMORY_FUNCTIONS = {"mem_get_info": _host_memory, "memory_stats": _empty_stats, "host_memory_stats": _empty_stats}


# -- time ------------------------------------------------------------------------------------------


class VirtualEvent:
    """A moment. Everything is done in order here, so what was recorded has also happened."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at: float | None = None

    def record(self, stream: object = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: "VirtualEvent") -> float:
        """Milliseconds.

        Raises:
            RuntimeError: one of the two was never recorded.
        """
        if self._at is None or end_event._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end_event._at - self._at)


class DefaultStream:
    """The one stream of a virtual device: whatever it was given is done."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, device_index: int) -> None:
        self.device_index = device_index
        self.device = torch.device("cuda", device_index)

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        made = event or VirtualEvent()
        made.record()
        return made

    def __enter__(self) -> "DefaultStream":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultStream) and other.device_index == self.device_index

    def __hash__(self) -> int:
        return hash(self.device)


def _time_functions(devices: VirtualDevices) -> dict[str, Any]:
    def stream(device: Any = None) -> DefaultStream:
        return DefaultStream(devices.index_of(device))

    def synchronize(device: Any = None) -> None:
        devices.index_of(device)

    return {
        "Event": VirtualEvent,
        "current_stream": stream,
        "default_stream": stream,
        "stream": _null_context,
        "set_stream": _always(None),
        "synchronize": synchronize,
    }


# -- random numbers --------------------------------------------------------------------------------


def _random_functions(devices: VirtualDevices) -> dict[str, Any]:
    """All numbers are drawn by the CPU's generator, which `torch.manual_seed` seeds. Seeding the devices changes
    nothing there, as on a GPU; it is only remembered."""
    seeds: defaultdict[int, int] = defaultdict(torch.initial_seed)

    def seed_all(seed: int) -> None:
        seeds.update(dict.fromkeys(range(devices.count), int(seed)))

    def state(index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray((seeds[index] % 2**64).to_bytes(16, "little")), dtype=torch.uint8)

    def restore(state: torch.Tensor, index: int) -> None:
        seeds[index] = int.from_bytes(bytes(state.tolist())[:8], "little")

    def restore_all(states: Iterable[torch.Tensor]) -> None:
        for index, each in enumerate(states):
            restore(each, index)

    return {
        "manual_seed": lambda seed: seeds.update({devices.current: int(seed)}),
        "manual_seed_all": seed_all,
        "seed": lambda: seeds.update({devices.current: _drawn_seed()}),
        "seed_all": lambda: seed_all(_drawn_seed()),
        "initial_seed": lambda: seeds[devices.current],
        "get_rng_state": lambda device="cuda": state(devices.index_of(device)),
        "get_rng_state_all": lambda: [state(index) for index in range(devices.count)],
        "set_rng_state": lambda new_state, device="cuda": restore(new_state, devices.index_of(device)),
        "set_rng_state_all": restore_all,
    }


def _drawn_seed() -> int:
    return int.from_bytes(os.urandom(7), "little")


# -- torch.accelerator -----------------------------------------------------------------------------


def _accelerator_functions(devices: VirtualDevices) -> dict[str, Any]:
    answers = _device_functions(devices) | _time_functions(devices)
    same = ("is_available", "device_count", "current_stream", "set_stream", "synchronize")
    return {name: answers[name] for name in same} | {
        "current_accelerator": lambda check_available=False: torch.device("cuda") if devices.count else None,
        "current_device_index": devices.index_of,
        "current_device_idx": devices.index_of,
        "set_device_index": answers["set_device"],
        "set_device_idx": answers["set_device"],
        "device_index": answers["device"],
        "get_device_capability": lambda device=None: {"supported_dtypes": DTYPES},
    }
