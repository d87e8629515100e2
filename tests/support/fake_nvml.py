"""NVML as pynvml shows it, with cards that a test makes up: the same functions, units, structs and errors.

Constants and errors are pynvml's own. `tests/unit/workers/node/hardware/test_gpu_reader.py` compares the functions with
those of pynvml.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass
class FakeCard:
    """What a card answers, in NVML's units. `fails` has the errors of single functions, by name."""

    uuid: str
    gpu_percent: int = 90
    used: int = 40 << 30
    total: int = 80 << 30
    milliwatts: int = 300_000
    celsius: int = 65
    clocks: dict[int, int] = field(default_factory=lambda: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619})
    reasons: int = 0
    ecc: dict[int, int] = field(
        default_factory=lambda: {
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: 7,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: 0,
        }
    )
    processes: dict[int, int | None] = field(default_factory=dict)
    fails: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


@dataclass
class Struct:
    """A struct of ctypes, as far as its fields go."""

    gpu: int = 0
    memory: int = 0
    total: int = 0
    free: int = 0
    used: int = 0
    pid: int = 0
    usedGpuMemory: int | None = None  # noqa: N815
    device: Any = None
    eventType: int = 0  # noqa: N815
    eventData: int = 0  # noqa: N815


class FakeNvml:
    """Stands in for the module `pynvml`."""

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.opened = 0
        self.xids: deque[tuple[FakeCard, int]] = deque()
        self._watched: list[FakeCard] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "nvmlClocks", "nvmlEventType")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _asked(self, card: FakeCard, name: str) -> None:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        card.calls.append(name)
        if name in card.fails:
            raise pynvml.NVMLError(card.fails[name])

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.cards:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeCard:  # noqa: N802
        for card in self.cards:
            if card.uuid == uuid:
                self._asked(card, "nvmlDeviceGetHandleByUUID")
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: FakeCard) -> str:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetUtilizationRates(self, handle: FakeCard) -> Struct:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetUtilizationRates")
        return Struct(gpu=handle.gpu_percent, memory=handle.gpu_percent // 2)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeCard, version: int | None = None) -> Struct:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetMemoryInfo")
        return Struct(total=handle.total, used=handle.used, free=handle.total - handle.used)

    def nvmlDeviceGetPowerUsage(self, handle: FakeCard) -> int:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetPowerUsage")
        return handle.milliwatts

    def nvmlDeviceGetTemperature(self, handle: FakeCard, sensor: int) -> int:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetTemperature")
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return handle.celsius

    def nvmlDeviceGetClockInfo(self, handle: FakeCard, type: int) -> int:  # noqa: A002, N802
        self._asked(handle, "nvmlDeviceGetClockInfo")
        return handle.clocks[type]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeCard) -> int:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetCurrentClocksEventReasons")
        return handle.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeCard) -> int:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return handle.reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeCard, errorType: int, counterType: int) -> int:  # noqa: N802, N803
        self._asked(handle, "nvmlDeviceGetTotalEccErrors")
        assert counterType == pynvml.NVML_VOLATILE_ECC
        return handle.ecc[errorType]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeCard) -> list[Struct]:  # noqa: N802
        self._asked(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [Struct(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()]

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle: FakeCard, eventTypes: int, eventSet: object) -> None:  # noqa: N802, N803
        self._asked(handle, "nvmlDeviceRegisterEvents")
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError
        self._watched.append(handle)

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> Struct:  # noqa: N802, N803
        assert timeoutms == 0, "a sample waits for nothing"
        while self.xids:
            card, xid = self.xids.popleft()
            if card in self._watched:
                return Struct(device=card, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=xid)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: N802, N803
        self._watched.clear()
