"""The programs of the service itself, the API and its workers, as processes that `up` starts or takes over."""

import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.model.settings import Settings
from shardyard.service.processes import ServiceProcess
from shardyard.service.virtual_nodes import PlannedWorker

#: The API drains open requests for 10 s.
API_STOP_SECONDS = 15.0
#: The worker's time to bring its attempts back to the queue, beside what they may take to save.
WORKER_STOP_SECONDS = 30.0


def api_process(data_dir: Path, environment: Mapping[str, str]) -> ServiceProcess:
    wanted = (
        *("REDIS_URL", "TELEMETRY_URL", "STORAGE", "STATE_DIR", "ADMIN_TOKEN_FILE", "SECRET_KEY_FILE"),
        *("HOST", "PORT", "TLS_CERT", "TLS_KEY", "INSECURE_HTTP", "JOBS_UNBOXED", "JOIN_FILE"),
    )
    return _own_process(data_dir, "api", ("-m", "api"), environment, wanted, stop_seconds=API_STOP_SECONDS)


def worker_process(data_dir: Path, environment: Mapping[str, str], worker: PlannedWorker) -> ServiceProcess:
    wanted = (
        *("REDIS_URL", "TELEMETRY_URL", "SUPERVISOR_REDIS_URL", "SUPERVISOR_TELEMETRY_URL"),
        *("STORAGE", "STATE_DIR", "SECRET_KEY_FILE", "TLS_KEY"),
        *("POOL", "DEVICES", "RUN_AS", "JOBS_UNBOXED", "NODE_ADDRESS"),
        *(name.removeprefix("SHARDYARD_") for name in worker.settings),
    )
    command = ("-m", "workers", "--stop-attempts-on-exit")
    return _own_process(
        data_dir,
        worker.process,
        command,
        {**environment, **worker.settings},
        wanted,
        stop_seconds=WORKER_STOP_SECONDS + Settings().checkpoint_seconds,
    )


def _own_process(
    data_dir: Path,
    name: str,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    wanted: tuple[str, ...],
    stop_seconds: float,
) -> ServiceProcess:
    """One of our own programs. It gets only the settings that it reads, so that a change of another keeps it."""
    settings = {
        f"SHARDYARD_{key}": environment[f"SHARDYARD_{key}"] for key in wanted if f"SHARDYARD_{key}" in environment
    }
    # -P: a directory called `jobs` or `api` in the working directory must not shadow ours.
    argv = (sys.executable, "-P", *command)
    return ServiceProcess(
        name, argv, settings, data_dir / f"{name}.lock", data_dir / "log" / f"{name}.log", stop_seconds=stop_seconds
    )
