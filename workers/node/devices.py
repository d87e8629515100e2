"""What devices this node has. GPUs come from NVML, so the worker's main process never imports torch."""

import re

import msgspec
import pynvml

from jobs.model.records import DeviceRecord
from workers.node.block.allocation import Allocation

VIRTUAL_DEVICES = 8
MAX_VIRTUAL_DEVICES = 1024

_GPUS = re.compile(r"cuda:(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_VIRTUAL = re.compile(r"cpu:(\d+)")


def discover_devices(wanted: str, allocation: Allocation | None = None) -> tuple[DeviceRecord, ...]:
    """The devices that `wanted` names: `auto`, `cuda:0-3`, `cuda:0,2`, or `cpu:8`.

    `auto` takes every GPU, or those of the `allocation`; where there is none, eight virtual devices.

    Raises:
        ValueError: the text is none of these, or names a GPU that the host does not have; or the GPUs of the allocation
            are not there.
    """
    if wanted == "auto":
        gpus = _read_gpus() if allocation is None else _allocated_gpus(allocation)
        return gpus or _virtual_devices(VIRTUAL_DEVICES)
    if match := _VIRTUAL.fullmatch(wanted):
        count = int(match[1])
        if not 1 <= count <= MAX_VIRTUAL_DEVICES:
            raise ValueError(f"{wanted!r}: between 1 and {MAX_VIRTUAL_DEVICES} virtual devices are possible")
        return _virtual_devices(count)
    if match := _GPUS.fullmatch(wanted):
        return _choose_gpus(_read_gpus(), _parse_ordinals(match[1]), wanted)
    raise ValueError(f"{wanted!r} names no devices; use auto, cuda:0-3, cuda:0,2 or cpu:8")


def processes_on_gpu(gpu: str) -> list[int]:
    """Processes that compute on a GPU now, by its UUID; of a container, as the host numbers them. None where the driver
    does not tell."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        return [int(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _virtual_devices(count: int) -> tuple[DeviceRecord, ...]:
    return tuple(DeviceRecord(i, "cpu", i, f"cpu:{i}", "virtual device") for i in range(count))


def _allocated_gpus(allocation: Allocation) -> tuple[DeviceRecord, ...]:
    """Inside a cgroup NVML lists the GPUs of the allocation alone, and numbers them anew; else it lists those of the
    host, and the step's environment says which are ours."""
    if not allocation.gpus:
        return ()
    gpus = _read_gpus()
    ours = gpus
    if len(gpus) > allocation.gpus:
        ours = tuple(gpu for gpu in gpus if _is_visible(gpu, allocation.visible))
    if len(ours) != allocation.gpus:
        seen = ", ".join(allocation.visible) or "nothing"
        raise ValueError(
            f"Slurm gave this node {allocation.gpus} GPUs (SLURM_GPUS_ON_NODE), of which {len(ours)} were found: the "
            f"driver lists {len(gpus)}, and CUDA_VISIBLE_DEVICES names {seen}; have Slurm constrain devices "
            "(ConstrainDevices=yes in cgroup.conf), or name them with --devices"
        )
    return tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(ours))


def _is_visible(gpu: DeviceRecord, visible: tuple[str, ...]) -> bool:
    """CUDA accepts the beginning of a UUID as well."""
    return any(gpu.ordinal == int(name) if name.isdecimal() else gpu.id.startswith(name) for name in visible)


def _read_gpus() -> tuple[DeviceRecord, ...]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_read_gpu(ordinal) for ordinal in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(ordinal: int) -> DeviceRecord:
    handle = pynvml.nvmlDeviceGetHandleByIndex(ordinal)
    return DeviceRecord(
        index=ordinal,
        kind="cuda",
        ordinal=ordinal,
        id=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        memory_total_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _parse_ordinals(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _choose_gpus(gpus: tuple[DeviceRecord, ...], ordinals: list[int], wanted: str) -> tuple[DeviceRecord, ...]:
    missing = [number for number in ordinals if number >= len(gpus)]
    if missing:
        raise ValueError(f"{wanted!r}: this host has {len(gpus)} GPUs, so there is no cuda:{missing[0]}")
    if len(set(ordinals)) != len(ordinals) or not ordinals:
        raise ValueError(f"{wanted!r} names a device twice, or none")
    return tuple(
        DeviceRecord(index, "cuda", gpus[n].ordinal, gpus[n].id, gpus[n].name, gpus[n].memory_total_bytes)
        for index, n in enumerate(ordinals)
    )
