"""What a worker takes from the environment of its Slurm step."""

import os
import re

import pytest

from jobs.model.settings import NODE_PATTERN
from workers.node.block.allocation import (
    Allocation,
    allocation_of,
    count_cores,
    find_address,
    name_node,
    read_allocation,
    read_settings,
)

STEP = {
    "HOSTNAME": "first",  # which srun copies to all nodes
    "SLURMD_NODENAME": "gpu-7",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_CPUS_ON_NODE": "1",
    "CUDA_VISIBLE_DEVICES": "0,1",
}


def test_the_allocation_is_that_of_this_node_of_the_step() -> None:
    assert read_allocation(STEP) == Allocation("gpu-7", 2, 1, ("0", "1"))
    assert read_allocation({"SLURMD_NODENAME": "gpu-7"}) == Allocation("gpu-7", 0, None)
    assert read_allocation({"HOSTNAME": "gpu-7"}) is None


def test_a_node_has_the_name_of_its_host_and_its_block() -> None:
    assert name_node("GPU-7", "4711") == "gpu-7-4711"
    for host in ("h" * 90, "a.b_c", "x"):
        name = name_node(host, "4711_3")
        assert re.fullmatch(NODE_PATTERN, name)
        assert len(name) <= 63
        assert name.endswith("-4711_3")


def test_cores_are_counted_by_the_allocation() -> None:
    here = len(os.sched_getaffinity(0))
    assert count_cores(None) == here
    assert count_cores(Allocation("a", 0, 1)) == 1
    assert count_cores(Allocation("a", 0, 10_000)) == here


def test_settings_that_are_not_set_come_from_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SHARDYARD_")]:
        monkeypatch.delenv(name)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDYARD_REDIS_URL", "redis://127.0.0.1:6379/0")
    assert read_settings().block == ""
    assert allocation_of(read_settings()) is None
    monkeypatch.setenv("SHARDYARD_BLOCK", "4711")
    found = read_settings()
    assert (found.node, found.node_address, found.topology) == ("gpu-7-4711", "127.0.0.1", "block-4711")
    assert allocation_of(found) == read_allocation(STEP)
    monkeypatch.setenv("SHARDYARD_NODE", "mine")
    monkeypatch.setenv("SHARDYARD_NODE_ADDRESS", "10.1.2.3")
    monkeypatch.setenv("SHARDYARD_TOPOLOGY", "rack-4")
    found = read_settings()
    assert (found.node, found.node_address, found.topology) == ("mine", "10.1.2.3", "rack-4")


def test_the_address_is_that_on_the_way_to_redis() -> None:
    assert find_address("unix:///run/redis.sock") == "127.0.0.1"
    assert find_address("redis://user:secret@localhost:6379/0") in ("127.0.0.1", "::1")
    with pytest.raises(ValueError, match="SHARDYARD_NODE_ADDRESS is not set") as refused:
        find_address("redis://user:secret@no-such-host.invalid:6379/0")
    assert "secret" not in str(refused.value)
