"""The limits of an attempt, from the node's settings and its share of the devices on its host."""

from jobs.model.settings import Settings
from workers.runtime.limits import AttemptLimits

#: Share of the host's memory that attempts may use together; the rest is the service's and the system's.
JOBS_SHARE = 0.9
#: The least that an attempt gets, however few of the node's devices it has: torch alone needs some.
MIN_MEMORY_BYTES = 2 * 1024**3


def limits_of(settings: Settings, leased: int, devices: int) -> AttemptLimits:
    """The limits of an attempt that has `leased` of the `devices` on its host."""
    total = _host_memory_bytes()
    share = max(int(total * JOBS_SHARE * leased / devices), MIN_MEMORY_BYTES)
    memory = settings.job_memory_bytes or min(share, total)
    return AttemptLimits(
        memory_bytes=memory,
        processes=settings.rank_processes,
        log_bytes=settings.job_log_bytes,
        disk_bytes=settings.job_disk_bytes,
        files=settings.job_files,
        tmp_bytes=settings.job_tmp_bytes or memory // 2,
        shm_bytes=settings.job_shm_bytes or memory // 2,
        record_bytes=settings.job_record_bytes,
    )


def _host_memory_bytes() -> int:
    with open("/proc/meminfo") as file:
        found = dict(line.split(":", 1) for line in file)
    return int(found["MemTotal"].split()[0]) * 1024
