"""What the code that makes reports has allocated."""

import tracemalloc

#: Where the report of an attempt is put together, whatever else runs in the process.
_REPORTING = ("*/workers/supervisor/report/*", "*/jobs/splits/*", "*/jobs/support/*", "*/shardyard/contract/*")


def allocated() -> int:
    """Bytes of reports, while tracemalloc runs. Threads that other tests have left in the process do not count."""
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, place) for place in _REPORTING])
    return sum(trace.size for trace in ours.traces)
