"""GPUs are read with NVML; what a card does not give is left out, and what fails harms nothing.

The cards are made up (`tests/support/fake_nvml.py`): these tests run where there is none.
"""

import inspect
from collections.abc import Callable

import pynvml
import pytest

from tests.support.fake_nvml import FakeCard, FakeNvml
from workers.node.hardware import gpu_reader
from workers.node.hardware.gpu_reader import GpuReader

Install = Callable[..., FakeNvml]


def test_the_fake_has_the_functions_of_pynvml_with_their_arguments() -> None:
    functions = {name: value for name, value in vars(FakeNvml).items() if name.startswith("nvml")}
    assert functions
    for name, function in functions.items():
        theirs = list(inspect.signature(getattr(pynvml, name)).parameters.values())
        ours = list(inspect.signature(function).parameters.values())[1:]
        assert len(ours) == len(theirs), name


def test_a_sample_has_every_value_in_its_unit(install_nvml: Install) -> None:
    install_nvml(
        FakeCard("GPU-a", reasons=pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle)
    )
    sample = GpuReader().read("GPU-a", with_processes=True)
    assert sample is not None
    assert sample.values == {
        "utilisation": 0.9,
        "memory_used_bytes": float(40 << 30),
        "power_watts": 300.0,
        "temperature_celsius": 65.0,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
    }
    assert (sample.throttled, sample.ecc) == (("power_cap",), {"ecc_corrected": 7, "ecc_uncorrected": 0})


def test_a_value_that_a_card_does_not_have_is_not_asked_for_again(install_nvml: Install) -> None:
    not_there = {"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NOT_SUPPORTED}
    card = FakeCard("GPU-a", fails=not_there)
    install_nvml(card)
    reader = GpuReader()
    for _ in range(3):
        sample = reader.read("GPU-a")
        assert sample is not None
        assert "power_watts" not in sample.values
        assert sample.values["utilisation"] == 0.9
    assert card.calls.count("nvmlDeviceGetPowerUsage") == 1


def test_a_value_that_fails_once_comes_again(install_nvml: Install) -> None:
    card = FakeCard("GPU-a", fails={"nvmlDeviceGetTemperature": pynvml.NVML_ERROR_UNKNOWN})
    install_nvml(card)
    reader = GpuReader()
    first = reader.read("GPU-a")
    card.fails.clear()
    second = reader.read("GPU-a")
    assert first is not None
    assert second is not None
    assert ("temperature_celsius" in first.values, "temperature_celsius" in second.values) == (False, True)


def test_an_older_driver_knows_clock_reasons_by_their_older_name(install_nvml: Install) -> None:
    card = FakeCard("GPU-a", reasons=pynvml.nvmlClocksEventReasonHwThermalSlowdown)
    card.fails["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    install_nvml(card)
    sample = GpuReader().read("GPU-a")
    assert sample is not None
    assert sample.throttled == ("thermal_hardware",)


def test_a_card_that_is_lost_is_tried_again_a_minute_later(
    install_nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(gpu_reader, "monotonic", lambda: clock[0])
    card = FakeCard("GPU-a", fails={"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_GPU_IS_LOST})
    install_nvml(card, FakeCard("GPU-b"))
    reader = GpuReader()
    assert reader.read("GPU-a") is None
    assert reader.read("GPU-b") is not None
    card.fails.clear()
    assert reader.read("GPU-a") is None
    clock[0] += gpu_reader.RETRY_SECONDS
    assert reader.read("GPU-a") is not None


def test_without_a_driver_nothing_is_read(install_nvml: Install) -> None:
    install_nvml()
    reader = GpuReader()
    assert reader.read("GPU-a") is None
    assert list(reader.take_xids()) == []
    reader.close()


def test_the_drivers_errors_come_with_their_card(install_nvml: Install) -> None:
    cards = FakeCard("GPU-a"), FakeCard("GPU-b")
    nvml = install_nvml(*cards)
    reader = GpuReader()
    assert all(reader.read(card.uuid) is not None for card in cards)
    nvml.xids.extend([(cards[1], 79), (cards[0], 31)])
    assert list(reader.take_xids()) == [("GPU-b", 79), ("GPU-a", 31)]
    assert list(reader.take_xids()) == []


def test_a_container_that_may_not_watch_errors_reads_the_rest(install_nvml: Install) -> None:
    install_nvml(FakeCard("GPU-a", fails={"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NOT_SUPPORTED}))
    reader = GpuReader()
    assert reader.read("GPU-a") is not None
    assert list(reader.take_xids()) == []


def test_processes_without_a_known_size_count_as_nothing(install_nvml: Install) -> None:
    install_nvml(FakeCard("GPU-a", processes={11: 1 << 30, 12: None}))
    sample = GpuReader().read("GPU-a", with_processes=True)
    assert sample is not None
    assert sample.processes == {11: 1 << 30, 12: 0}


def test_every_open_is_closed(install_nvml: Install) -> None:
    nvml = install_nvml(FakeCard("GPU-a"))
    reader = GpuReader()
    reader.read("GPU-a")
    assert nvml.opened == 1
    reader.close()
    reader.close()
    assert nvml.opened == 0
