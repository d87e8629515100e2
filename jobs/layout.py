"""Where everything that outlives an attempt lies under `SHARDYARD_STORAGE`.

    <storage>/jobs/<tenant>/<job>/<attempt>/logs/device-<n>.log
                                           /metrics.bin
                                           /report.json
                                           /artifacts/

The API and every node see the same directory, so these names are part of the contract between them.
"""

from pathlib import Path


def job_dir(storage: Path, tenant: str, job: str) -> Path:
    return storage / "jobs" / tenant / job


def attempt_dir(storage: Path, tenant: str, job: str, attempt: int) -> Path:
    return job_dir(storage, tenant, job) / str(attempt)


def logs_dir(attempt: Path) -> Path:
    return attempt / "logs"


def log_file(attempt: Path, device: int) -> Path:
    return logs_dir(attempt) / f"device-{device}.log"


def metrics_file(attempt: Path) -> Path:
    return attempt / "metrics.bin"


def report_file(attempt: Path) -> Path:
    return attempt / "report.json"


def artifacts_dir(attempt: Path) -> Path:
    return attempt / "artifacts"
