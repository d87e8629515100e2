"""Watches all limits of one attempt.

log         what ranks print, counted where it is read
records     what their records take of this process, and of the disk
disk, files `workers.supervisor.limits.disk_meter`; and whether a disk runs full of it, `...disk_room`
memory, processes
            `workers.supervisor.limits.cgroup_meter` where a cgroup limits them,
            `workers.supervisor.limits.process_meter` where none does

Beside these, `workers.supervisor.limits.cpu_share` has an attempt with very many processes step back.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.breach import LimitBreach
from workers.supervisor.limits.cgroup_meter import CgroupMeter
from workers.supervisor.limits.cpu_share import CpuShare
from workers.supervisor.limits.disk_meter import DiskMeter
from workers.supervisor.limits.disk_room import DiskRoom
from workers.supervisor.limits.log_meter import LogMeter
from workers.supervisor.limits.process_listing import list_descendants
from workers.supervisor.limits.process_meter import ProcessMeter
from workers.supervisor.limits.record_meter import RecordMeter
from workers.supervisor.limits.usage_meter import UsageMeter


class LimitWatch:
    """`limits`: None where none are set; the memory of this process has one in any case. `meters` are asked beside the
    two that count what is read; `kept_bytes` is that of `RecordMeter`."""

    def __init__(
        self,
        limits: AttemptLimits | None = None,
        meters: Sequence[UsageMeter] = (),
        kept_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.log = LogMeter(None if limits is None else limits.log_bytes)
        self.records = RecordMeter(None if limits is None else limits.record_bytes, kept_bytes)
        self._meters: tuple[UsageMeter, ...] = (self.records, *meters, self.log)
        self._breach: LimitBreach | None = None

    def find_breach(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        """The first limit that was exceeded, if any was; `now` is monotonic. `at_once`: measure now. While a program
        that has printed too much may end in its own way, the other limits count still."""
        if self._breach is None or not self._breach.is_urgent:
            found = (meter.check(now, at_once=at_once) for meter in self._meters)
            self._breach = next((breach for breach in found if breach is not None), None)
        return self._breach

    def close(self) -> None:
        """The ranks are dead."""
        for meter in self._meters:
            meter.close()


def open_limit_watch(
    limits: AttemptLimits | None,
    directories: Sequence[Path],
    cgroup: Sequence[Path],
    kept_bytes: Callable[[], int],
    room: DiskRoom,
    devices: int,
) -> LimitWatch:
    """Begin to watch an attempt, whose processes descend from this one. `directories` are its own; `cgroup` are those
    of its cgroup, where it has one. What that does not limit is measured here. `room` is what it shares with its node
    about the disks, `devices` how many it has."""
    if limits is None:
        return LimitWatch()
    list_processes = partial(list_descendants, os.getpid())
    group = CgroupMeter(limits, cgroup)
    meters: list[UsageMeter] = [group, CpuShare(cgroup, devices)]
    if group.watched != {"memory", "processes"}:
        meters.append(ProcessMeter(limits, list_processes))
    if directories:
        meters += [DiskMeter(limits, directories, list_processes, room), room]
    return LimitWatch(limits, meters, kept_bytes)
