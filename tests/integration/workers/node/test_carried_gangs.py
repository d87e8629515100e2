"""Jobs over two nodes that mount no storage: each carries what it has written."""

from collections.abc import Iterator

import pytest

from jobs.files import checkpoints, paths
from jobs.model.state import JobState
from tests.integration.workers.service import TENANT, eventually
from tests.integration.workers.two_nodes import NODES, TwoNodes, two_nodes
from workers.carrier.journal import carried_attempts

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("\\n".join(f"line {number} of rank {rank}" for number in range(500)))
open(os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], f"of-rank-{rank}"), "w").write(str(rank))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    directory = tmp_path_factory.mktemp("nodes")
    (directory / "storage").mkdir()
    with two_nodes(directory, storage=f"file://{directory}/storage") as service:
        yield service


def all_is_carried(service: TwoNodes) -> None:
    states = [service.directory / "state" / node for node in NODES]
    eventually(lambda: not any(list(carried_attempts(state)) for state in states), "all is carried")


def test_the_logs_and_files_of_all_nodes_arrive(carried: TwoNodes) -> None:
    job = carried.run_script({"train.py": SCRIPT}, strategy="ddp", nodes=2)
    assert carried.ended(job).state is JobState.SUCCEEDED
    all_is_carried(carried)
    for rank in range(2):
        lines = carried.text(job, device=rank).splitlines()
        assert lines == [f"line {number} of rank {rank}" for number in range(500)]
        assert (paths.artifacts_dir(carried.files(job)) / f"of-rank-{rank}").read_text() == str(rank)


def test_a_checkpoint_is_put_together_from_all_nodes(carried: TwoNodes) -> None:
    job = carried.gang("fsdp", 1, steps=8, checkpoint={"every_steps": 4})
    record = carried.ended(job)
    assert record.state is JobState.SUCCEEDED
    assert record.checkpoint is not None
    newest = paths.checkpoint_dir(carried.storage, TENANT, job, record.checkpoint["step"], 1)
    checkpoints.verify_checkpoint(newest, record.checkpoint["sha256"])
    all_is_carried(carried)
