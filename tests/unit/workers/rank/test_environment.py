"""The variables that a rank sees."""

import pytest

from tests.support.samples.attempts import a_launch
from workers.rank.process import rank_variables

RENDEZVOUS = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}


def test_ranks_under_ddp_find_each_other_at_the_supervisors_port() -> None:
    variables = rank_variables(a_launch(devices=3), 2, 4711)
    assert {name: variables[name] for name in RENDEZVOUS} == {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4711",
        "WORLD_SIZE": "3",
        "RANK": "2",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "3",
    }
    assert variables["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert variables["TORCHELASTIC_RESTART_COUNT"] == "2"  # the third attempt


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_other_strategies_see_nothing_of_a_rendezvous(strategy: str) -> None:
    variables = rank_variables(a_launch(strategy=strategy), 0, None)
    assert not [name for name in variables if name in RENDEZVOUS or name.startswith("TORCHELASTIC_")]


def test_every_rank_carries_the_mark_of_its_attempt() -> None:
    assert rank_variables(a_launch(), 1, 4711)["SHARDYARD_ATTEMPT"] == "default/job-1/3"


def test_the_whole_lease_is_visible_by_uuid_and_no_other_gpu() -> None:
    assert rank_variables(a_launch(devices=2, kind="cuda"), 1, 4711)["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"


def test_virtual_devices_see_no_gpu() -> None:
    assert rank_variables(a_launch(kind="cpu"), 0, 4711)["CUDA_VISIBLE_DEVICES"] == ""
