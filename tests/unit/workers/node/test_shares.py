"""What a virtual node counts as its own of the machine that it shares."""

import os
from pathlib import Path

import pytest

from jobs.model.settings import Settings
from jobs.support.disk_space import DiskSpace
from workers.node.config import NodeConfig
from workers.node.devices import discover_devices
from workers.node.disks.ballast import RESERVE_PARTS, Ballast
from workers.node.job_limits import limits_of

MIB = 1 << 20


def config(**settings: object) -> NodeConfig:
    return NodeConfig(Settings.model_validate(settings), discover_devices("cpu:4"))


@pytest.mark.parametrize(
    ("settings", "devices"),
    [({}, 4), ({"nodes": 3, "virtual_node": 2}, 12), ({"nodes": 3}, 4)],
)
def test_devices_share_the_machine_with_those_of_the_other_virtual_nodes(
    settings: dict[str, int], devices: int
) -> None:
    assert config(**settings).devices_here == devices


def test_attempts_on_all_virtual_nodes_together_get_what_those_on_one_node_would() -> None:
    alone, shared = config(), config(nodes=2, virtual_node=1)
    whole = limits_of(alone.settings, 4, alone.devices_here).memory_bytes
    half = limits_of(shared.settings, 4, shared.devices_here).memory_bytes
    assert half < whole
    assert half * 2 == pytest.approx(whole, abs=2)


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_the_ballasts_of_all_virtual_nodes_together_are_as_large_as_that_of_one(tmp_path: Path, nodes: int) -> None:
    space = DiskSpace("state", os.stat(tmp_path).st_dev, free_bytes=640 * MIB, reserve_bytes=64 * MIB)
    for node in range(nodes):
        Ballast(tmp_path / str(node), nodes).restore(space)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 64 * MIB // RESERVE_PARTS
