"""Which workers `shardyard up` runs, and with what."""

from pathlib import Path

import pytest

from jobs.model.records import DeviceRecord
from jobs.model.settings import MAX_NODE_LENGTH, Settings
from shardyard.service import virtual_nodes
from shardyard.service.processes import ServiceError
from shardyard.service.virtual_nodes import PlannedWorker, find_other_workers, plan_workers, release_ballast


def test_one_node_is_the_machine_and_has_no_settings_of_its_own() -> None:
    assert plan_workers(1, "cuda:0-7", "host-a") == (PlannedWorker("worker", "host-a", {}),)


def test_virtual_nodes_are_numbered_after_the_machine_and_have_addresses_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = plan_workers(3, "cpu:2", "host-a")
    assert [(worker.process, worker.node) for worker in planned] == [
        ("worker-1", "host-a-1"),
        ("worker-2", "host-a-2"),
        ("worker-3", "host-a-3"),
    ]
    for number, worker in enumerate(planned, start=1):
        with monkeypatch.context() as patched:
            for name, value in worker.settings.items():
                patched.setenv(name, value)
            settings = Settings()
        assert (settings.node, settings.node_address) == (worker.node, f"127.0.0.{number}")
        assert (settings.virtual_node, settings.nodes_here) == (number, 3)


def test_a_long_name_leaves_room_for_the_number() -> None:
    planned = plan_workers(12, "cpu:1", "h" * MAX_NODE_LENGTH)
    assert max(len(worker.node) for worker in planned) == MAX_NODE_LENGTH
    assert len({worker.node for worker in planned}) == 12


@pytest.mark.parametrize("devices", ["auto", "cuda:0"])
def test_a_machine_is_not_divided_with_its_gpus(devices: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceRecord(0, "cuda", 0, "GPU-0", "H100")
    monkeypatch.setattr(virtual_nodes, "discover_devices", lambda wanted: (gpu,))
    with pytest.raises(ServiceError, match=rf"--nodes 2 .*virtual devices only, and --devices {devices} means 1 of"):
        plan_workers(2, devices, "host-a")


def test_devices_that_are_none_are_refused_before_anything_starts() -> None:
    with pytest.raises(ServiceError, match=r"--devices: 'tpu:4' names no devices"):
        plan_workers(2, "tpu:4", "host-a")


def test_workers_of_another_number_of_nodes_are_found_by_their_locks(tmp_path: Path) -> None:
    for name in ("worker", "worker-1", "worker-2", "worker-3", "api", "up"):
        (tmp_path / f"{name}.lock").touch()
    assert find_other_workers(tmp_path, plan_workers(2, "cpu:1", "h")) == ["worker", "worker-3"]
    assert find_other_workers(tmp_path, plan_workers(1, "cpu:1", "h")) == ["worker-1", "worker-2", "worker-3"]


def test_disk_space_of_nodes_that_nobody_serves_is_given_back(tmp_path: Path) -> None:
    for node in ("h", "h-1", "h-2"):
        (tmp_path / node / "attempts").mkdir(parents=True)
        (tmp_path / node / "ballast").touch()
    release_ballast(tmp_path, plan_workers(2, "cpu:1", "h"))
    assert sorted(path.parent.name for path in tmp_path.glob("*/ballast")) == ["h-1", "h-2"]
    assert (tmp_path / "h" / "attempts").is_dir()
