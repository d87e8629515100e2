"""An attempt to test with."""

from pathlib import Path
from typing import Literal

from jobs.model.records import DeviceRecord
from jobs.model.spec import JobSpec
from jobs.store import AttemptId
from workers.runtime.launch import AttemptConfig

ATTEMPT = AttemptId("default", "job-1", 3)


def a_launch(
    directory: Path = Path("state"),
    *,
    strategy: str = "ddp",
    devices: int = 2,
    kind: Literal["cpu", "cuda"] = "cpu",
    grace_seconds: float = 0.2,
) -> AttemptConfig:
    spec = JobSpec.model_validate(
        {
            "resources": {"devices": devices},
            "parallelism": {"strategy": strategy},
            "program": {
                "kind": "recipe",
                "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
                "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 15},
                "loss": {"ref": "cross_entropy"},
                "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
            },
        }
    )
    ids = {"cpu": "cpu:", "cuda": "GPU-"}
    lease = tuple(DeviceRecord(n, kind, n, f"{ids[kind]}{n}", "a device") for n in range(devices))
    return AttemptConfig(
        attempt=ATTEMPT,
        spec=spec,
        node="n1",
        address="127.0.0.1",
        devices=lease,
        threads=1,
        state_dir=directory,
        storage=directory / "storage",
        lease_seconds=120,
        beat_seconds=5,
        grace_seconds=grace_seconds,
    )
