"""`shardyard.job` in the ranks of real jobs."""

import pytest

from jobs.files import metric_file, paths
from jobs.model.state import JobState
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

PROGRAM = """
import os
import torch
from shardyard import job

rank = int(os.environ["RANK"])
for step in range(3):
    job.log("loss", torch.tensor(float(rank), requires_grad=True), step)
    job.log("seen", step * 10)
    job.progress(step + 1, 3)
(job.output_dir() / f"rank-{rank}.txt").write_text("kept")
if rank == 0:
    torch.save({"w": torch.ones(2)}, "model.pt")
    print(job.checkpoint("model.pt").relative_to(job.output_dir()), job.should_stop())
"""


def test_what_a_script_says_of_itself_arrives(service: Service) -> None:
    job = service.run_script({"train.py": PROGRAM}, strategy="ddp", devices=2)

    assert service.ended(job).state is JobState.SUCCEEDED

    series = metric_file.read_series(paths.metrics_file(service.files(job)))
    found = {(one.device, one.name): [(point.step, point.value) for point in one.points] for one in series}
    assert found[-1, "loss"] == [(0, 0.0), (1, 0.0), (2, 0.0)]  # rank 0 speaks for the job
    assert found[1, "loss"] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert found[-1, "seen"] == [(0, 0.0), (1, 10.0), (2, 20.0)]
    kept = paths.artifacts_dir(service.files(job))
    files = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    (manifest,) = (kept / ".checkpoints").iterdir()
    assert files == {"checkpoints/model.pt", f".checkpoints/{manifest.name}", "rank-0.txt", "rank-1.txt"}
    assert service.text(job).splitlines() == ["checkpoints/model.pt False"]
    assert service.text(job, 1, "stderr") == ""
