"""`shardyard worker` joins a service that other hosts can reach, and no other."""

import os

import pytest

from shardyard.cli.service import worker_command
from shardyard.contract.errors import InvalidRequest


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
