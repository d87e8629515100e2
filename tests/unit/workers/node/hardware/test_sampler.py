"""One sample a second of all attempts, added up in files that a restart does not lose."""

import os
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from jobs.protocol.hardware import (
    AttemptSamples,
    NodeReading,
    SampledDevice,
    SampledRank,
    decode_samples,
    encode_ranks,
)
from jobs.store import AttemptId
from tests.support.fake_nvml import FakeCard, FakeNvml
from workers.node.hardware import attempt_sampler
from workers.node.hardware.sampler import HardwareSampler, ReadingsPublisher
from workers.runtime.launch import AttemptDirectory
from workers.runtime.process_status import read_start_time

Install = Callable[..., FakeNvml]
ATTEMPT = AttemptId("default", "job", 1)
SELF = os.getpid()


class Node:
    """A node whose clock the test moves on, with attempts whose ranks are this very process."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state_dir = directory
        self.held = [ATTEMPT]
        self.clock = 1000.0
        self.published: list[list[NodeReading]] = []
        for module in ("attempt_sampler", "sampler", "gpu_reader"):
            monkeypatch.setattr(f"workers.node.hardware.{module}.monotonic", lambda: self.clock)
        monkeypatch.setattr(ReadingsPublisher, "publish_if_due", lambda _, readings: self.published.append(readings))
        self.sampler = self.restarted()

    def restarted(self) -> HardwareSampler:
        sampler = HardwareSampler("n1", self.state_dir, "redis://localhost:1", lambda: self.held)
        sampler._remove_leftovers()
        return sampler

    def begin(self, *ranks: tuple[SampledDevice, ...], pids: tuple[int, ...] = ()) -> AttemptDirectory:
        directory = AttemptDirectory.of(self.state_dir, ATTEMPT)
        directory.create()
        listed = [
            SampledRank(rank, pid, read_start_time(pid), devices)
            for rank, (devices, pid) in enumerate(zip(ranks, pids or (SELF,) * len(ranks), strict=True))
        ]
        directory.sampled_ranks.write_bytes(encode_ranks(listed))
        return directory

    def sample(self, times: int = 1, seconds: float = 1.0) -> AttemptSamples:
        for _ in range(times):
            self.clock += seconds
            self.sampler.sample_once(self.clock)
        return self.samples()

    def samples(self) -> AttemptSamples:
        return decode_samples(AttemptDirectory.of(self.state_dir, ATTEMPT).hardware.read_bytes())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def gpu(device: int, index: int | None = None) -> SampledDevice:
    return SampledDevice(device, device if index is None else index, "cuda", f"GPU-{device}")


def test_a_virtual_device_has_the_series_of_its_ranks_process(node: Node) -> None:
    node.begin((SampledDevice(0, 4, "cpu", "cpu:4"), SampledDevice(1, 5, "cpu", "cpu:5")))
    samples = node.sample(3)
    first, second = samples.devices
    assert set(first.series) == {"cpu_cores", "resident_bytes", "anonymous_bytes", "runnable_threads"}
    assert first.series["resident_bytes"].latest > first.series["anonymous_bytes"].latest > 1e6
    assert (first.samples, first.seconds, second.samples, second.series) == (3, 2.0, 3, {})
    assert samples.cores >= 1
    assert [reading.device for reading in node.published[-1]] == [4, 5]


def test_watts_add_up_to_watt_hours(node: Node, install_nvml: Install) -> None:
    card = FakeCard("GPU-0", milliwatts=360_000)
    install_nvml(card)
    node.begin((gpu(0),))
    node.sample(11)
    card.milliwatts = 180_000
    (device,) = node.sample(10).devices
    power = device.summary().series["power_watts"]
    assert (power.minimum, power.mean, power.maximum, power.latest) == (180.0, 270.0, 360.0, 180.0)
    assert power.integral == pytest.approx(270 * 20 / 3600, rel=1e-4)


def test_a_gap_is_not_filled(node: Node, install_nvml: Install) -> None:
    install_nvml(FakeCard("GPU-0"))
    node.begin((gpu(0),))
    node.sample(2)
    (device,) = node.sample(1, seconds=600).devices
    assert device.seconds == 1 + attempt_sampler.MAX_GAP_SECONDS


def test_a_worker_that_was_restarted_continues_the_samples(node: Node, install_nvml: Install) -> None:
    card = FakeCard("GPU-0")
    install_nvml(card)
    node.begin((gpu(0),))
    node.sample(5)
    card.ecc[pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED] += 2
    node.sampler = node.restarted()
    samples = node.sample(5)
    (device,) = samples.devices
    assert device.samples == 10
    assert device.errors["ecc_corrected"] == 2
    assert samples.at - samples.began == 9


def test_throttling_and_errors_are_counted(node: Node, install_nvml: Install) -> None:
    card, other = FakeCard("GPU-0"), FakeCard("GPU-1")
    nvml = install_nvml(card, other)
    node.begin((gpu(0),), (gpu(1),))
    node.sample(3)
    card.reasons = pynvml.nvmlClocksEventReasonHwThermalSlowdown
    nvml.xids.append((other, 79))
    first, second = (device.summary() for device in node.sample(1).devices)
    assert first.throttled == {"thermal_hardware": 0.25}
    assert (first.errors, second.errors) == ({}, {"xid_79": 1})


def test_a_card_that_fails_costs_its_own_samples_alone(node: Node, install_nvml: Install) -> None:
    lost = FakeCard("GPU-0", fails={"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_GPU_IS_LOST})
    install_nvml(lost, FakeCard("GPU-1"))
    node.begin((gpu(0),), (gpu(1),))
    node.sample(2)
    first, second = node.sample(1, seconds=61).devices
    assert "utilisation" not in first.series
    assert first.series["cpu_cores"].count == second.series["utilisation"].count - 1 == 2


def test_a_rank_on_another_ranks_gpu_is_seen(
    node: Node, install_nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.node.hardware.sampler.read_children", dict)
    parent = os.getppid()
    both: dict[int, int | None] = {SELF: 9 << 30, parent: 1 << 29}
    install_nvml(FakeCard("GPU-0", processes=both), FakeCard("GPU-1", processes={parent: 1}))
    node.begin((gpu(0),), (gpu(1),), pids=(SELF, parent))
    samples = node.sample(1)
    (stray,) = samples.strays
    assert (stray.rank, stray.device, stray.memory_bytes) == (1, 0, 1 << 29)


def test_an_attempt_that_holds_nothing_any_more_leaves_no_file(node: Node) -> None:
    directory = node.begin((SampledDevice(0, 0, "cpu", "cpu:0"),))
    node.sample(2)
    assert directory.hardware.exists()
    node.held = []
    node.sampler.sample_once(node.clock + 1)
    assert not directory.hardware.exists()


def test_files_that_no_attempt_needs_go_when_a_worker_starts(node: Node) -> None:
    directory = node.begin((SampledDevice(0, 0, "cpu", "cpu:0"),))
    node.sample(2)
    directory.remove()
    node.restarted()
    assert list(directory.hardware.parent.iterdir()) == []


def test_a_rank_that_has_ended_is_sampled_no_more(node: Node) -> None:
    directory = node.begin((SampledDevice(0, 0, "cpu", "cpu:0"),))
    directory.sampled_ranks.write_bytes(
        encode_ranks(
            [SampledRank(0, SELF, 1, (SampledDevice(0, 0, "cpu", "cpu:0"),))]
        )  # another process of that number
    )
    node.sampler.sample_once(node.clock)
    assert not directory.hardware.exists()


def test_the_samples_of_a_day_are_as_small_as_those_of_minutes(node: Node, install_nvml: Install) -> None:
    install_nvml(FakeCard("GPU-0"))
    node.begin((gpu(0),))
    node.sample(200)
    small = AttemptDirectory.of(node.state_dir, ATTEMPT).hardware.stat().st_size
    node.sample(3000)
    large = AttemptDirectory.of(node.state_dir, ATTEMPT).hardware.stat().st_size
    assert large < 1.3 * small < 60_000
