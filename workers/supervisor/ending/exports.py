"""Has the metrics of an attempt written as files of other tools, where the job asks for them (`program.export`)."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import structlog

from jobs.files import paths
from jobs.model.spec import JobSpec
from jobs.store import AttemptId
from jobs.support import fs
from workers.exports.run_metrics import NOT_INSTALLED, ExportRequest

log = structlog.get_logger(__name__)

#: How long one tool's library may take.
EXPORT_SECONDS = 120.0


def export_metrics(spec: JobSpec, attempt: AttemptId, storage: Path, metrics: Path) -> Iterator[str]:
    """Write what the job asks for to its artifacts, as `exported-FORMAT/`. The processes of the attempt must be dead.
    Yields, of each that was not written, why, in a sentence."""
    directory = paths.dir_of_attempt(storage, attempt).absolute()
    for tool in spec.program.export or ():
        target = paths.artifacts_dir(directory) / f"exported-{tool}"
        with tempfile.TemporaryDirectory(prefix="export-", dir=directory, ignore_cleanup_errors=True) as scratch:
            draft = Path(scratch, "draft")
            request = ExportRequest(
                tool,
                attempt.job,
                spec.name or "",
                str(metrics),
                str(draft),
                attempt.number,
                spec.model_dump(mode="json", exclude_none=True),
            )
            why = _run_export(request, Path(scratch)) or _put_in_place(draft, target)
        if why:
            log.warning("metrics_not_exported", format=tool, error=why)
            yield f"program.export: files of {tool} were not written: {why}"


def _run_export(request: ExportRequest, scratch: Path) -> str:
    """Why it failed; "" if it did not."""
    command = [sys.executable, "-m", "workers.exports"]
    own = {name: str(scratch) for name in ("HOME", "TMPDIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")}
    environment = own | {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(request),
            env=environment,
            cwd=scratch,
            capture_output=True,
            timeout=EXPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {EXPORT_SECONDS:.0f} s"
    except OSError as error:
        return str(error)
    if done.returncode == NOT_INSTALLED:
        return "the worker of this node lacks its library; install there: pip install 'shardyard[export]'"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return last[0][:500] if done.returncode else ""


def _put_in_place(draft: Path, target: Path) -> str:
    """What the job's own code left there is not replaced, and no link of its is followed."""
    try:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        if os.path.lexists(target):
            return f"the job has an artifact {target.name} of its own"
        draft.rename(target)
        fs.sync_directory(target.parent)
    except OSError as error:
        return str(error)
    return ""
