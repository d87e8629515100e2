"""What a worker says of its node when it registers."""

import os
from pathlib import Path

import pytest

from jobs import store
from jobs.model.settings import Settings
from tests.integration.store.world import World, node_info
from workers.node.config import NodeConfig
from workers.node.reach import identify_loopback
from workers.node.registration import register_node

pytestmark = pytest.mark.integration


def test_a_node_announces_where_it_stands_and_that_it_is_virtual(world: World, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    places = {"storage": tmp_path / "storage", "state_dir": tmp_path}
    settings = Settings.model_validate({"node": "n1", "nodes": 2, "virtual_node": 1, "topology": "rack-4"} | places)
    register_node(NodeConfig(settings, node_info(2).devices), world.store, "i1")
    (node,) = world.run(store.read_fleet()).nodes
    assert (node.topology, node.info.virtual) == ("rack-4", True)
    assert node.info.cores == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize(
    ("address", "reach"),
    [("10.0.0.7", "network"), ("127.0.0.2", f"loopback:{identify_loopback()}"), ("gpu-7.example.org", "")],
)
def test_a_node_announces_how_others_reach_it(world: World, tmp_path: Path, address: str, reach: str) -> None:
    (tmp_path / "n1").mkdir()
    places = {"storage": tmp_path / "storage", "state_dir": tmp_path}
    settings = Settings.model_validate({"node": "n1", "node_address": address} | places)
    register_node(NodeConfig(settings, node_info(2).devices), world.store, "i1")
    (node,) = world.run(store.read_fleet()).nodes
    assert node.reach == reach
