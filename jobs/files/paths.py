"""Where everything that outlives an attempt is stored under `SHARDYARD_STORAGE`.

    <storage>/jobs/<tenant>/<job>/<attempt>/logs/device-<n>.log
                                           /metrics.bin
                                           /report.json
                                           /hardware.msgpack  what its node measured of its devices
                                           /artifacts/        what the program wrote there itself
                                           /files/            what a script left in its working directory
                                           /files.json        how much that is, and what was not kept
                                           /files.part        a file on its way to them
                                           /profiles/<n>/     traces of its ranks, and profile.json about them
                                           /drafts/<step>/    of checkpoints, while the attempt lives
                                           /resume/           what its ranks' account may read of one
                                           /parts/<n>/        the same two of its part on another node
    <storage>/jobs/<tenant>/<job>/checkpoints/<step>-<attempt>/
    <storage>/bundles/<tenant>/<hex>.<nonce>.zip
                              /.<nonce>.part
    <storage>/.node-drafts/<node>/<digits>.part  what a node without this directory brings, until it is whole
    <storage>/archive/<tenant>/<first digits of the job's id>/<job>.json
    <storage>/traces/sent.json         which job's spans were sent last

The API and every node see the same directory, so these names are part of the contract between them.
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobs.store import AttemptId

#: Directory of uploads of nodes that are not complete; back-ups leave out what begins with a dot.
NODE_DRAFTS = ".node-drafts"
#: Directory of what nodes bring, and take away again, to see that they can; of each one file, so large at most.
NODE_CHECKS, MAX_CHECK_BYTES = ".node-checks", 1024 * 1024


def node_check(node: str) -> str:
    """The file that a node tries the storage with, relative to that."""
    return f"{NODE_CHECKS}/{node}/check"


def checkpoints_dir(storage: Path, tenant: str, job: str) -> Path:
    return job_dir(storage, tenant, job) / "checkpoints"


def checkpoint_dir(storage: Path, tenant: str, job: str, step: int, attempt: int) -> Path:
    """A complete checkpoint of `step` steps. Names sort as steps do."""
    return checkpoints_dir(storage, tenant, job) / f"{step:012d}-{attempt}"


def jobs_dir(storage: Path) -> Path:
    return storage / "jobs"


def job_dir(storage: Path, tenant: str, job: str) -> Path:
    return jobs_dir(storage) / tenant / job


def attempt_dir(storage: Path, tenant: str, job: str, attempt: int) -> Path:
    return job_dir(storage, tenant, job) / str(attempt)


def dir_of_attempt(storage: Path, attempt: "AttemptId") -> Path:
    return attempt_dir(storage, attempt.tenant, attempt.job, attempt.number)


def logs_dir(attempt: Path) -> Path:
    return attempt / "logs"


def log_file(attempt: Path, device: int) -> Path:
    return logs_dir(attempt) / f"device-{device}.log"


def metrics_file(attempt: Path) -> Path:
    return attempt / "metrics.bin"


def report_file(attempt: Path) -> Path:
    return attempt / "report.json"


def hardware_file(attempt: Path) -> Path:
    return attempt / "hardware.msgpack"


def artifacts_dir(attempt: Path) -> Path:
    return attempt / "artifacts"


def user_files_dir(attempt: Path) -> Path:
    return attempt / "files"


def user_files_record(attempt: Path) -> Path:
    return attempt / "files.json"


def user_file_draft(attempt: Path) -> Path:
    return attempt / "files.part"


def profiles_dir(attempt: Path) -> Path:
    return attempt / "profiles"


def profile_dir(attempt: Path, number: int) -> Path:
    return profiles_dir(attempt) / str(number)


def drafts_dir(attempt: Path, part: int = 0) -> Path:
    return _part_dir(attempt, part) / "drafts"


def resume_dir(attempt: Path, part: int = 0) -> Path:
    return _part_dir(attempt, part) / "resume"


def parts_dir(attempt: Path) -> Path:
    """What the parts of an attempt on other nodes than the leader's have for themselves."""
    return attempt / "parts"


def _part_dir(attempt: Path, part: int) -> Path:
    return parts_dir(attempt) / str(part) if part else attempt


def archive_dir(storage: Path) -> Path:
    return storage / "archive"


def tenant_archive(storage: Path, tenant: str) -> Path:
    return archive_dir(storage) / tenant


def archive_file(storage: Path, tenant: str, job: str) -> Path:
    """The record of a job that is no longer in the control Redis. An id begins with the time, so one directory has the
    jobs of about five hours, and the names of directories and files sort as the jobs were made."""
    return tenant_archive(storage, tenant) / job[:6] / f"{job}.json"


def traces_dir(storage: Path) -> Path:
    return storage / "traces"


def bundles_dir(storage: Path) -> Path:
    return storage / "bundles"


def bundle_dir(storage: Path, tenant: str) -> Path:
    return bundles_dir(storage) / tenant


def bundle_file(storage: Path, tenant: str, bundle: str, nonce: str) -> Path:
    """File of one upload of a bundle; `bundle` is the id, `sha256:<hex>`."""
    return bundle_dir(storage, tenant) / f"{bundle.removeprefix('sha256:')}.{nonce}.zip"


def bundle_draft(storage: Path, tenant: str, nonce: str) -> Path:
    """File of an upload while it arrives."""
    return bundle_dir(storage, tenant) / f".{nonce}.part"


def find_bundle(storage: Path, tenant: str, bundle: str) -> Path | None:
    """File that holds a bundle. Of two uploads that raced the first one stays, so the oldest is taken."""
    found: list[tuple[float, Path]] = []
    for file in bundle_dir(storage, tenant).glob(f"{bundle.removeprefix('sha256:')}.*.zip"):
        with suppress(FileNotFoundError):  # the loser of a race has just been taken away
            found.append((file.stat().st_mtime, file))
    return min(found)[1] if found else None
