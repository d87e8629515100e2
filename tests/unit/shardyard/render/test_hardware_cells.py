"""One line for each device, with what it has."""

from shardyard.contract.hardware import DeviceHardware, SampledSeries
from shardyard.render.hardware_cells import format_series_value, hardware_cells, hardware_remarks

POWER = SampledSeries(60.0, 312.0, 350.0, 340.0, 26.0)
CPU = SampledSeries(0.5, 1.25, 2.0, 1.0, 0.104)
MEMORY = SampledSeries(1e9, 2e9, 3 * 2.0**30, 2e9, 1.0)


def test_only_what_was_read_has_a_column() -> None:
    virtual = DeviceHardware(0, 300, 300.0, {"cpu_cores": CPU, "resident_bytes": MEMORY})
    short = DeviceHardware(1, 3, 3.0, {"cpu_cores": SampledSeries(0.5, 1.0, 2.0, 1.0, 0.001)})
    assert hardware_cells([virtual, short]) == [
        ["device", "CPU cores", "CPU time", "resident"],
        ["0", "1.25", "0.104 core-h", "3.00 GiB"],
        ["1", "1.00", "3.60 core-s", "-"],
    ]


def test_a_gpu_shows_what_it_took_and_what_was_wrong() -> None:
    busy = SampledSeries(0.0, 0.87, 1.0, 0.9, 0.07)
    gpu = DeviceHardware(0, 300, 300.0, {"utilisation": busy, "power_watts": POWER}, {"power_cap": 0.12}, {"xid_79": 1})
    assert hardware_cells([gpu]) == [["device", "GPU busy", "power", "energy"], ["0", "87%", "312 W", "26.0 Wh"]]
    assert list(hardware_remarks([gpu])) == [
        "device 0 was throttled: power_cap 12% of the time",
        "device 0 had errors: xid_79 1",
    ]


def test_values_have_their_units() -> None:
    shown = [("utilisation", 0.5), ("memory_used_bytes", 2.0**30), ("sm_clock_mhz", 1980.0), ("cpu_cores", 2.0)]
    assert [format_series_value(*one) for one in shown] == ["50%", "1.00 GiB", "1,980 MHz", "2.00"]
