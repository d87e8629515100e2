import pynvml
import pytest

from workers.node.block.allocation import Allocation
from workers.node.devices import discover_devices, processes_on_gpu


class Nvml:
    """Stands in for a host's GPUs: there are none where these tests run."""

    NVMLError = pynvml.NVMLError

    def __init__(self, count: int) -> None:
        self._count = count

    def nvmlInit(self) -> None:  # noqa: N802
        if not self._count:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._count

    def nvmlDeviceGetHandleByIndex(self, ordinal: int) -> int:  # noqa: N802
        return ordinal

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "a GPU"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> "Memory":  # noqa: N802
        return Memory()

    def nvmlDeviceGetHandleByUUID(self, gpu: str) -> int:  # noqa: N802
        if gpu not in {f"GPU-{ordinal}" for ordinal in range(self._count)}:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return int(gpu.removeprefix("GPU-"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list["Process"]:  # noqa: N802
        return [Process()] if handle == 1 else []


class Memory:
    total = 80 << 30


class Process:
    pid = 4711


@pytest.mark.usefixtures("four_gpus")
def test_who_computes_on_a_gpu_is_known_by_its_uuid() -> None:
    assert [processes_on_gpu(gpu) for gpu in ("GPU-0", "GPU-1", "GPU-of another host")] == [[], [4711], []]


def test_nobody_is_known_to_compute_where_there_is_no_driver(no_gpu: None) -> None:
    assert processes_on_gpu("GPU-1") == []


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.node.devices.pynvml", Nvml(4))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.node.devices.pynvml", Nvml(0))


@pytest.mark.usefixtures("no_gpu")
def test_a_host_without_gpus_gets_eight_virtual_devices() -> None:
    assert [device.label for device in discover_devices("auto")] == [f"cpu:{n}" for n in range(8)]


@pytest.mark.usefixtures("four_gpus")
def test_auto_takes_every_gpu_by_its_uuid() -> None:
    devices = discover_devices("auto")
    assert [(device.index, device.label, device.id) for device in devices] == [
        (n, f"cuda:{n}", f"GPU-{n}") for n in range(4)
    ]
    assert devices[0].memory_total_bytes == 80 << 30


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("wanted", "ordinals"),
    [("cuda:0-3", [0, 1, 2, 3]), ("cuda:2", [2]), ("cuda:0,2-3", [0, 2, 3]), ("cuda:3,1", [3, 1])],
)
def test_chosen_gpus_get_slots_in_the_order_in_which_they_were_named(wanted: str, ordinals: list[int]) -> None:
    devices = discover_devices(wanted)
    assert [device.ordinal for device in devices] == ordinals
    assert [device.index for device in devices] == list(range(len(ordinals)))
    assert [device.id for device in devices] == [f"GPU-{n}" for n in ordinals]


@pytest.mark.usefixtures("four_gpus")
def test_virtual_devices_may_be_asked_for_where_there_are_gpus() -> None:
    assert [device.id for device in discover_devices("cpu:2")] == ["cpu:0", "cpu:1"]


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("cuda:0-4", "this host has 4 GPUs, so there is no cuda:4"),
        ("cuda:1,1", "names a device twice, or none"),
        ("cuda:3-1", "names a device twice, or none"),
        ("cpu:0", "between 1 and 1024 virtual devices"),
        ("cpu:2000", "between 1 and 1024 virtual devices"),
        ("gpu:0", "names no devices; use auto"),
        ("", "names no devices; use auto"),
        ("cuda:", "names no devices; use auto"),
    ],
)
def test_text_that_names_no_device_of_the_host_is_refused_with_the_reason(wanted: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        discover_devices(wanted)


# -- an allocation of Slurm ----------------------------------------------------------------------------


def allocated(monkeypatch: pytest.MonkeyPatch, on_host: int, gpus: int, *visible: str) -> list[tuple[int, str]]:
    monkeypatch.setattr("workers.node.devices.pynvml", Nvml(on_host))
    found = discover_devices("auto", Allocation("gpu-7", gpus, None, visible))
    return [(device.index, device.id) for device in found]


def test_inside_a_cgroup_every_gpu_that_is_seen_is_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocated(monkeypatch, 2, 2, "0", "1") == [(0, "GPU-0"), (1, "GPU-1")]


def test_where_all_gpus_of_the_host_are_seen_the_step_names_those_of_the_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert allocated(monkeypatch, 8, 2, "5", "7") == [(0, "GPU-5"), (1, "GPU-7")]
    assert allocated(monkeypatch, 8, 1, "GPU-3") == [(0, "GPU-3")]


def test_without_gpus_in_the_allocation_none_of_the_host_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for _, name in allocated(monkeypatch, 8, 0)} == {f"cpu:{number}" for number in range(8)}


@pytest.mark.parametrize(("on_host", "visible"), [(1, ()), (8, ()), (8, ("0", "1", "2"))])
def test_gpus_of_an_allocation_that_are_not_found_are_an_error(
    monkeypatch: pytest.MonkeyPatch, on_host: int, visible: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=r"Slurm gave this node 2 GPUs .*ConstrainDevices"):
        allocated(monkeypatch, on_host, 2, *visible)
