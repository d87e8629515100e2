"""Reads the status of processes from `/proc/PID/stat`: see proc(5)."""

import os

#: PF_EXITING in the flags of a process.
_EXITING = 0x4


def is_stopped(pid: int) -> bool:
    """Whether a process is held by SIGSTOP or the like."""
    fields = read_stat_fields(pid)
    return bool(fields) and fields[0] in (b"T", b"t")


def is_dying(pid: int) -> bool:
    """Whether a process has begun to exit. The kernel sets this flag before it closes what the process had
    open, so it is visible before others see their connections break. The death itself may be visible much later, for
    example for a process that held a GPU."""
    fields = read_stat_fields(pid)
    return bool(fields) and bool(int(fields[6]) & _EXITING)


def read_start_time(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when there is no such process."""
    fields = read_stat_fields(pid)
    return int(fields[19]) if fields else 0


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when there is no such process."""
    fields = read_stat_fields(pid)
    return int(fields[1]) if fields else 0


def cpu_seconds_of_children(pid: int) -> float:
    """Processor time of all children that a process has waited for. It may be dead, as long as it is not reaped."""
    fields = read_stat_fields(pid)
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def read_stat_fields(pid: int) -> list[bytes]:
    """The fields of a process from its state on; an empty list when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # unbuffered: a sweep reads thousands of them
            data = file.read()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()  # the command before it may hold spaces and brackets
