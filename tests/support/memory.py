"""What the code of `jobs` and its tests has allocated."""

import tracemalloc


def allocated() -> int:
    """Bytes, while tracemalloc runs. Threads that other tests have left in the process do not count."""
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/jobs/*")])
    return sum(trace.size for trace in ours.traces)
