"""What is measured on a GPU, against what the machine itself says."""

import time

import pynvml
import pytest

from shardyard.client import Client
from workers.node.device_check import DeviceChecker
from workers.node.devices import discover_devices
from workers.node.hardware.gpu_reader import GpuReader
from workers.probe.clock import CLOCKS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_events_agree_with_the_wall_clock() -> None:
    import torch

    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        x @ x
    torch.cuda.synchronize()
    clock = CLOCKS["cuda"]
    began = time.perf_counter()
    begin = clock.mark(0)
    for _ in range(50):
        x @ x
    end = clock.mark(0)
    clock.wait(end)
    wall = (time.perf_counter() - began) * 1000
    assert clock.ms(begin, end) == pytest.approx(wall, rel=0.2)


def test_an_event_is_read_later_and_the_host_never_waits() -> None:
    import torch

    x = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    clock = CLOCKS["cuda"]
    began = time.perf_counter()
    for _ in range(20):
        x @ x
    mark = clock.mark(0)
    noted = time.perf_counter() - began
    assert not clock.reached(mark)
    clock.wait(mark)
    assert clock.reached(mark)
    assert noted < time.perf_counter() - began


def test_nvml_and_torch_mean_the_same_card() -> None:
    import torch

    for device in discover_devices("auto"):
        found = torch.cuda.get_device_properties(device.ordinal)
        assert device.kind == "cuda"
        assert device.name == found.name
        assert str(found.uuid) in device.id
        assert device.memory_total_bytes is not None
        assert device.memory_total_bytes >= found.total_memory


def test_nvml_gives_a_series_of_use_and_memory() -> None:
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        series = []
        for _ in range(5):
            use = pynvml.nvmlDeviceGetUtilizationRates(handle)
            series.append((use.gpu, pynvml.nvmlDeviceGetMemoryInfo(handle).used))
            time.sleep(0.1)
    finally:
        pynvml.nvmlShutdown()
    assert all(0 <= gpu <= 100 and used > 0 for gpu, used in series)


def test_a_gpu_that_computes_has_nothing_wrong() -> None:
    for device in discover_devices("auto"):
        assert device.kind == "cuda"
        assert DeviceChecker().find_fault(device) == ""


def test_a_device_in_quarantine_comes_back_on_proof_that_it_computes(gpus: Client) -> None:
    (node,) = gpus.nodes()
    marked = gpus.quarantine(node.id, 0, "to be proven")
    assert marked.devices[0].quarantine is not None
    back = gpus.unquarantine(node.id, 0)
    assert back.devices[0].quarantine is None


def test_a_card_is_sampled_in_every_value() -> None:
    import torch

    reader = GpuReader()
    for device in discover_devices("auto"):
        x = torch.randn(4096, 4096, device=f"cuda:{device.ordinal}")
        for _ in range(200):
            x = x @ x / 64
        torch.cuda.synchronize()
        sample = reader.read(device.id, with_processes=True)
        assert sample is not None
        assert device.memory_total_bytes is not None
        assert 0 <= sample.values["utilisation"] <= 1
        assert x.nbytes < sample.values["memory_used_bytes"] <= device.memory_total_bytes
        assert 5 < sample.values["power_watts"] < 2000
        assert 10 < sample.values["temperature_celsius"] < 110
        assert 100 < sample.values["sm_clock_mhz"] < 5000
    assert list(reader.take_xids()) == []
    reader.close()


def test_a_sample_of_a_card_is_cheap() -> None:
    reader = GpuReader()
    gpus = [device.id for device in discover_devices("auto")]
    for gpu in gpus:
        reader.read(gpu, with_processes=True)
    began = time.process_time()
    for _ in range(20):
        for gpu in gpus:
            reader.read(gpu)
    assert (time.process_time() - began) / 20 / len(gpus) < 0.02
    reader.close()
