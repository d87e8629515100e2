"""Ranks under an account of their own, where the operator names one (SHARDYARD_RUN_AS): what users' code does there, it
does without the rights of the service.

    at start           `choose_accounts` reads the setting; `workers.sandbox.check` tries whether the accounts can do
                       what jobs need, and no more
    in each rank       `confine_rank`, before anything of the user's
    for each attempt   `make_passable` and `give_tree` let it reach its own directories; `take_back` undoes that

Directories of the service that lie on the way to an attempt's own may be passed, but not read. With a range of
accounts, jobs that run side by side have different ones, and cannot get at each other either.
"""

import os
import pwd
import re
import resource
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from jobs.model.records import DeviceRecord
from jobs.support.directory_cursor import walk_directories
from workers.runtime.launch import RankAccount
from workers.runtime.process_control import keep_own_proc_files
from workers.sandbox.keyrings import clear_user_keyrings, join_new_keyring

log = structlog.get_logger(__name__)

#: What lets others pass a directory without looking into it.
PASSABLE = 0o011
#: By how much the kernel lets an account have more processes than an attempt may: the attempt's own limit is met first,
#: and ends it with the reason.
MORE_PROCESSES = 64
#: The largest id; the one after it means "none" to the kernel.
MAX_ID = 2**32 - 2

_NUMBERS = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?:(\d{1,10})")


@dataclass(frozen=True, slots=True)
class NodeAccounts:
    """The accounts of a node: one for all attempts, or a range with one for each device. The first `skipped` of a range
    are those of other nodes on this machine."""

    first: int
    last: int
    gid: int
    groups: tuple[int, ...]
    name: str  # "": the account's number is its name
    skipped: int = 0

    @property
    def is_shared(self) -> bool:
        return self.first == self.last

    def for_devices(self, devices: Iterable[int], processes: int = 4096) -> RankAccount:
        """The account for a lease of these devices of the node. No other lease has it, unless all share one."""
        uid = self.first if self.is_shared else self.first + self.skipped + min(devices)
        return RankAccount(uid, self.gid, self.groups, self.name or str(uid), processes, not self.is_shared)


def choose_accounts(
    run_as: str, devices: Sequence[DeviceRecord], nodes: int = 1, before: int = 0
) -> NodeAccounts | None:
    """The accounts that a setting names: `name`, `uid:gid`, or `first-last:gid`. None where it is empty. A range is
    shared by the `nodes` of this machine, which have equally many devices; `before` of them come before this one.

    Raises:
        ValueError: it has another form, names no account, or one that is no better than ours; or we are not root.
    """
    if not run_as:
        return None
    first, last, gid, name = _parse_accounts(run_as)
    if os.geteuid() != 0:
        raise ValueError("SHARDYARD_RUN_AS: only a worker that runs as root can give its ranks another account")
    if 0 in (first, gid):
        raise ValueError(f"SHARDYARD_RUN_AS: {run_as!r} is root, or of root's group; name an account without rights")
    if max(last, gid) > MAX_ID or last < first:
        raise ValueError(f"SHARDYARD_RUN_AS: {run_as!r} has numbers that no account has")
    if first < last and last - first + 1 < len(devices) * nodes:
        where = f" on each of {nodes} nodes" if nodes > 1 else ""
        raise ValueError(
            f"SHARDYARD_RUN_AS: {run_as!r} has {last - first + 1} accounts for {len(devices)} devices{where}; "
            "give one to each device"
        )
    return NodeAccounts(first, last, gid, groups_for(devices), name, before * len(devices))


def warn_of_access(accounts: NodeAccounts | None, devices: int) -> None:
    """Tell the operator what users' code can reach, where that is more than it must be."""
    if accounts is None and os.geteuid() == 0:
        log.warning("jobs_run_as_root", advice="everyone who may submit jobs is root here; set SHARDYARD_RUN_AS")
    elif accounts is not None and accounts.is_shared and devices > 1:
        log.warning("jobs_share_an_account", advice="set SHARDYARD_RUN_AS to first-last:gid, to keep them apart")


def _parse_accounts(run_as: str) -> tuple[int, int, int, str]:
    """First and last uid, gid, and name."""
    if match := _NUMBERS.fullmatch(run_as):
        first, last, gid = match.groups()
        return int(first), int(last or first), int(gid), ""
    try:
        found = pwd.getpwnam(run_as)
    except KeyError:
        raise ValueError(
            f"SHARDYARD_RUN_AS: this host has no account {run_as!r}; write its name, uid:gid, or first-last:gid"
        ) from None
    return found.pw_uid, found.pw_uid, found.pw_gid, found.pw_name


def gpu_files() -> list[Path]:
    """The device files that CUDA opens."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*")]
    return [path for path in found if stat.S_ISCHR(path.stat().st_mode)]


def groups_for(devices: Sequence[DeviceRecord]) -> tuple[int, ...]:
    """Groups that may use the GPUs' files, where there are GPUs and not everybody may."""
    if not any(device.kind == "cuda" for device in devices):
        return ()
    stats = [path.stat() for path in gpu_files()]
    closed = [found for found in stats if found.st_mode & 0o060 == 0o060 and found.st_mode & 0o006 != 0o006]
    return tuple(sorted({found.st_gid for found in closed} - {0}))


# -- processes -------------------------------------------------------------------------------------


def become_account(account: RankAccount) -> None:
    """Take an account for good: with the old one go its groups and all capabilities."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def confine_rank(account: RankAccount, pipes: Iterable[int]) -> None:
    """Have this process, a rank, go on as `account`. `pipes` are those it writes to.

    The parent-death signal is lost by this.
    """
    for pipe in pipes:
        os.fchown(pipe, account.uid, account.gid)  # else it could not open /dev/stdout, which is its own
    become_account(account)
    keep_own_proc_files()
    join_new_keyring()
    if account.is_own:
        clear_user_keyrings()  # of what another attempt has left that had this account
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    wanted = account.processes + MORE_PROCESSES
    bound = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))


# -- files -----------------------------------------------------------------------------------------


def make_passable(first: Path, last: Path) -> None:
    """Let other accounts pass through the directories from `first` down to `last`."""
    steps = [last, *last.parents]
    for directory in steps[: steps.index(first) + 1]:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if mode & PASSABLE != PASSABLE:
            directory.chmod(mode | PASSABLE)


def give_tree(tree: Path, account: RankAccount) -> None:
    """Make a directory and all in it the account's own. Nobody else may be able to write there."""
    _chown_tree(tree, account.uid, account.gid)


def take_back(directory: Path, given: Path) -> bool:
    """Let nobody pass a directory any more that a way was opened to, and take back what was given away in it; False
    where that fails. Nothing was given where the directory is closed, and `given` is ours.

    What the account has left there is of its making: no link in it is followed, and it may be of any depth.
    """
    try:
        if not directory.stat().st_mode & PASSABLE and given.stat().st_uid == os.geteuid():
            return True
        directory.chmod(0o700)
        _chown_tree(given, os.geteuid(), os.getegid())
    except FileNotFoundError:
        return True
    except OSError as error:
        log.warning("not_taken_back", directory=str(given), error=str(error))
        return False
    return True


def _chown_tree(tree: Path, uid: int, gid: int) -> None:
    """The tree's root comes last: it tells whether everything in it has this owner."""
    for here, names in walk_directories(tree):
        for name in names:
            os.chown(name, uid, gid, dir_fd=here, follow_symlinks=False)
    os.chown(tree, uid, gid, follow_symlinks=False)
