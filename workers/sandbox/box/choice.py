"""Which box this node can put around its jobs, and what that lacks and why: by trying to make one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import structlog

from jobs.model.records import BOX_RIGHTS, BoxRights, DeviceRecord
from jobs.model.settings import Settings
from workers.runtime.process_control import adopt_orphans
from workers.sandbox import cgroup, run_as
from workers.sandbox.box import accounts, seccomp
from workers.sandbox.box.box import Box, BoxFailed
from workers.sandbox.box.init import BoxWork
from workers.sandbox.box.plan import BoxLevel, BoxPlan
from workers.sandbox.box.planner import plan_box
from workers.sandbox.run_as import NodeAccounts

log = structlog.get_logger(__name__)

_NO_ROOT = "the worker is not root"


def choose_box(
    settings: Settings,
    environments: Mapping[str, Path],
    node_accounts: NodeAccounts | None,
    devices: Sequence[DeviceRecord],
) -> tuple[BoxPlan | None, BoxRights]:
    """The best box that can be had here, and what that gives to jobs. `node_accounts` are those that the operator names
    for jobs, if any."""
    if settings.box == "off":
        return None, BoxRights("none", dict.fromkeys(BOX_RIGHTS, "SHARDYARD_BOX is off"))
    lacks: dict[str, str] = {}
    syscalls = None
    try:
        syscalls = seccomp.compile_filter()
    except OSError as error:
        lacks["syscalls"] = f"no filter: {error} (Debian: apt install libseccomp2)"
    if os.geteuid() == 0:
        cgroup.enable_controllers()
        cgroup.remove_unused_cgroups()
    why = ""
    levels: tuple[BoxLevel, ...] = ("full", "user") if os.geteuid() == 0 else ("user",)
    for level in levels:
        try:
            plan = plan_box(settings, level, environments.values(), syscalls)
            if level == "full" and node_accounts is None:
                plan = replace(
                    plan,
                    accounts=accounts.choose_range(),
                    groups=run_as.groups_for(devices),
                    processes=settings.rank_processes,
                )
            limited = _try_box(plan)
        except OSError as error:
            why = why or str(error)
            continue
        return plan, BoxRights(level, lacks | _lacks_of(level, limited))
    log.warning("jobs_unboxed", why=why)
    return None, BoxRights("none", dict.fromkeys(BOX_RIGHTS, why))


@contextmanager
def box_for_trial(plan: BoxPlan) -> Iterator[Box]:
    """A box of this process, which must have one thread.

    Raises:
        BoxFailed: it cannot be made.
    """
    adopt_orphans()
    try:
        box = Box.make(plan, BoxWork(_refuse, _refuse))
        try:
            yield box
        finally:
            box.destroy()
            box.release()
    finally:
        adopt_orphans(False)


def _try_box(plan: BoxPlan) -> frozenset[str]:
    """Make a box; returns the controllers that can limit it.

    Raises:
        BoxFailed: it cannot be made.
    """
    with box_for_trial(plan) as box:
        return box.group.limited if box.group is not None else frozenset()


def _refuse(*_: object) -> NoReturn:
    raise BoxFailed("a box that is tried has no ranks")


def _lacks_of(level: BoxLevel, limited: frozenset[str]) -> dict[str, str]:
    lacks = {}
    if level == "user":
        lacks["account"] = f"{_NO_ROOT}: jobs have the service's own account, in a namespace of their own"
    for right, controller in (("memory", "memory"), ("pids", "pids")):
        if controller not in limited:
            lacks[right] = (
                f"no cgroup can be made that limits {controller} (systemd: Delegate=yes); it is watched instead"
            )
    return lacks
