"""What one attempt may use of its node.

Whoever uses more ends as `resource_limit`, which is the user's failure, with the limit and what was used.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Bytes and counts. `tmp_bytes` and `shm_bytes` are the sizes of private file systems in memory."""

    memory_bytes: int
    processes: int  # and threads
    log_bytes: int
    disk_bytes: int  # working directory, artifacts and drafts of checkpoints
    files: int  # in the same directories
    tmp_bytes: int
    shm_bytes: int
    record_bytes: int = 2**30  # points of metrics, on disk
