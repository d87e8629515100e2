"""What a node measured of an attempt's devices once a second, as the split report has it."""

import msgspec

#: Every series, with its title. Shares are from 0 to 1; processes are those of the device's rank and its descendants.
SERIES_TITLES = {
    "utilisation": "GPU busy",
    "memory_used_bytes": "GPU memory",
    "power_watts": "power",
    "temperature_celsius": "temperature",
    "sm_clock_mhz": "SM clock",
    "memory_clock_mhz": "memory clock",
    "cpu_cores": "CPU cores",
    "resident_bytes": "resident memory",
    "anonymous_bytes": "anonymous memory",
    "runnable_threads": "runnable threads",
}


class SampledSeries(msgspec.Struct, frozen=True):
    """The samples of one series. `mean` is over time; `integral` is the value times hours: watt-hours of power,
    core-hours of CPU cores."""

    minimum: float
    mean: float
    maximum: float
    latest: float
    integral: float


class DeviceHardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device over the attempt: `samples` of it, which cover `seconds`.

    `series` is by name (`SERIES_TITLES`); a series that cannot be read here is left out. Devices that one process
    serves share its processes: the first of them has their series. `throttled` is for each reason the share of samples
    in which it held the clocks down; `errors` counts those of memory ("ecc_corrected", "ecc_uncorrected") and of the
    driver ("xid_79") since the attempt's first sample.
    """

    device: int
    samples: int
    seconds: float
    series: dict[str, SampledSeries]
    throttled: dict[str, float] = {}
    errors: dict[str, int] = {}
