"""`shardyard worker` joins a service that other hosts can reach, and no other."""

import os

import pytest

from shardyard.cli.service import worker_command
from shardyard.contract.errors import InvalidRequest
from workers.node.shutdown import ShutdownOptions, parse_options


@pytest.mark.parametrize("url", [None, "", "unix://:secret@/data/control/r.sock?db=0"])
def test_a_worker_is_not_started_against_an_embedded_redis(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDYARD_REDIS_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("SHARDYARD_REDIS_URL", url)

    with pytest.raises(InvalidRequest, match="--redis-url") as refused:
        worker_command()

    assert "secret" not in str(refused.value)


def test_environments_are_passed_on_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_REDIS_URL", "redis://somewhere")
    for name in ("SHARDYARD_POOL", "SHARDYARD_DEVICES", "SHARDYARD_ENVIRONMENTS"):
        monkeypatch.setenv(name, "")  # so that they are put back
    started: list[str] = []
    monkeypatch.setattr("shardyard.cli.service._exec_module", lambda *module: started.extend(module))
    worker_command(env=["vision=/opt/vision/bin/python", "nlp=/opt/nlp/bin/python"])
    assert started == ["workers.node.worker_monitor"]
    assert os.environ["SHARDYARD_ENVIRONMENTS"] == "vision=/opt/vision/bin/python,nlp=/opt/nlp/bin/python"


def test_options_of_a_block_are_passed_on_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_REDIS_URL", "redis://somewhere")
    for name in ("SHARDYARD_POOL", "SHARDYARD_DEVICES", "SHARDYARD_TOPOLOGY", "SHARDYARD_BLOCK"):
        monkeypatch.setenv(name, "")
    started: list[str] = []
    monkeypatch.setattr("shardyard.cli.service._exec_module", lambda *module: started.extend(module))
    worker_command(block="4711", idle_exit="600", lifetime="55m")
    assert started[1:] == ["--in-block", "--idle-exit", "600", "--lifetime", "3300"]
    assert os.environ["SHARDYARD_BLOCK"] == "4711"
    with pytest.raises(InvalidRequest, match="add --block"):
        worker_command(idle_exit="600")
    with pytest.raises(InvalidRequest, match="--lifetime 'long'"):
        worker_command(block="4711", lifetime="long")
    with pytest.raises(InvalidRequest, match="--stop-attempts-on-exit"):
        worker_command(block="4711", stop_attempts_on_exit=True)


def test_in_a_block_a_stop_moves_attempts_at_once_unless_a_time_is_given() -> None:
    assert parse_options(["--in-block"]) == ShutdownOptions(drain=True, drain_seconds=0.0, in_block=True)
    assert parse_options(["--in-block", "--drain", "60", "--idle-exit", "600"]) == ShutdownOptions(
        drain=True, drain_seconds=60.0, in_block=True, idle_exit=600.0
    )
