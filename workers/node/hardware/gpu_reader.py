"""Reads GPUs with NVML. A value that a card or its driver does not give is left out; an error harms nothing."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

import pynvml
import structlog

log = structlog.get_logger(__name__)

#: After a driver that does not answer, or a card that is lost, so long until the next try.
RETRY_SECONDS = 60.0
#: Errors that are taken from the driver's queue for one sample.
MAX_EVENTS = 64
#: Why clocks are lower than they could be. What users have set themselves, and idling, is no throttling.
THROTTLE_REASONS = {
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "thermal_software": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "thermal_hardware": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
#: Errors that will not go away: a value with one of them is not asked for again.
_PERMANENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION)
_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_RESET_REQUIRED)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One sample of a GPU. `ecc` are counters since the driver was loaded, `processes` the memory of each process."""

    values: dict[str, float]
    throttled: tuple[str, ...] = ()
    ecc: dict[str, int] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)


class GpuReader:
    """Samples GPUs, which it names by their UUIDs. Used by one thread."""

    def __init__(self) -> None:
        self._is_open = False
        self._retry_at: dict[str, float] = {}
        self._handles: dict[str, Any] = {}
        self._unsupported: set[tuple[str, str]] = set()  # GPU and value
        self._events: Any = None

    def read(self, gpu: str, *, with_processes: bool = False) -> GpuSample | None:
        """A sample of a GPU; None while it cannot be read."""
        handle = self._find_handle(gpu)
        if handle is None:
            return None
        try:
            values = {name: value for name, value in self._read_values(gpu, handle) if value is not None}
            reasons = self._read_value(gpu, "throttled", partial(_clock_reasons, handle)) or 0
            return GpuSample(
                values=values,
                throttled=tuple(name for name, bit in THROTTLE_REASONS.items() if int(reasons) & bit),
                ecc={name: int(value) for name, value in self._read_ecc(gpu, handle) if value is not None},
                processes=_read_processes(handle) if with_processes else {},
            )
        except pynvml.NVMLError as error:
            log.warning("gpu_not_read", gpu=gpu, error=str(error))
            self._handles.pop(gpu, None)
            self._retry_at[gpu] = monotonic() + RETRY_SECONDS
            if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
                self.close()
            return None

    def take_xids(self) -> Iterator[tuple[str, int]]:
        """Errors that the driver has reported since the last call: the GPU, and the number of the error (XID)."""
        for _ in range(MAX_EVENTS if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
                gpu = pynvml.nvmlDeviceGetUUID(event.device)
            except pynvml.NVMLError:  # mostly a time-out: there is no further one
                return
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                yield str(gpu), int(event.eventData)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._handles.clear()
        events, self._events = self._events, None
        with suppress(pynvml.NVMLError):
            if events is not None:
                pynvml.nvmlEventSetFree(events)
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    # -- the driver --------------------------------------------------------------------------------

    def _find_handle(self, gpu: str) -> Any:
        if gpu in self._handles:
            return self._handles[gpu]
        if monotonic() < self._retry_at.get(gpu, 0.0):
            return None
        try:
            if not self._is_open:
                pynvml.nvmlInit()
                self._is_open = True
            handle = self._handles[gpu] = pynvml.nvmlDeviceGetHandleByUUID(gpu)
        except pynvml.NVMLError as error:
            log.warning("gpu_not_found", gpu=gpu, error=str(error))
            self._retry_at[gpu] = monotonic() + RETRY_SECONDS
            return None
        self._watch_errors(gpu, handle)
        return handle

    def _watch_errors(self, gpu: str, handle: Any) -> None:
        """Have the driver queue the card's errors. Not all cards and containers can."""
        try:
            if self._events is None:
                self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError as error:
            log.info("gpu_errors_not_watched", gpu=gpu, error=str(error))

    def _read_values(self, gpu: str, handle: Any) -> Iterator[tuple[str, float | None]]:
        for name, read in _VALUES.items():
            yield name, self._read_value(gpu, name, partial(read, handle))

    def _read_ecc(self, gpu: str, handle: Any) -> Iterator[tuple[str, float | None]]:
        for name, kind in _ECC.items():
            read = partial(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
            yield name, self._read_value(gpu, name, read)

    def _read_value(self, gpu: str, name: str, read: Callable[[], float]) -> float | None:
        """One value; None where the card does not give it.

        Raises:
            NVMLError: the card, or the driver, is lost.
        """
        if (gpu, name) in self._unsupported:
            return None
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                raise
            if error.value in _PERMANENT:
                self._unsupported.add((gpu, name))
            return None


def _read_processes(handle: Any) -> dict[int, int]:
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise
        return {}
    return {int(one.pid): int(one.usedGpuMemory or 0) for one in found}


def _clock_reasons(handle: Any) -> int:
    """Drivers before 535 know this under an older name."""
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


#: How each value is read, in the units of `shardyard.contract.hardware`.
_VALUES: dict[str, Callable[[Any], float]] = {
    "utilisation": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "memory_used_bytes": lambda handle: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
    "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "temperature_celsius": lambda handle: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    "sm_clock_mhz": lambda handle: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": lambda handle: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
}
_ECC = {
    "ecc_corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "ecc_uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
