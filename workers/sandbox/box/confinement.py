"""What a process of a job gives up before anything of the user's runs in it: its account, capabilities, keyring, and
the system calls that it does not need."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from workers.runtime.launch import RankAccount
from workers.runtime.process_control import drop_privileges
from workers.sandbox.box.syscalls import drop_capabilities, filter_syscalls, forgo_capabilities
from workers.sandbox.keyrings import join_new_keyring
from workers.sandbox.run_as import confine_rank

#: Where memory runs out, the kernel ends processes of jobs, and not the service.
OOM_SCORE_JOB = 500
OOM_SCORE_SERVICE = -500


def confine_process(account: RankAccount | None, syscalls: bytes | None, pipes: Iterable[int]) -> None:
    """Have this process, which is in a box, go on as one of a job. `pipes` are those that it writes to; `account` None:
    it keeps its own.

    The parent-death signal is lost by this.
    """
    forgo_capabilities()
    if account is not None:
        confine_rank(account, pipes)
    else:
        join_new_keyring()
    drop_capabilities()
    drop_privileges()
    if syscalls is not None:
        filter_syscalls(syscalls)


def set_oom_score(score: int) -> None:
    """Set which processes the kernel ends first; a process without the right to lower its score keeps it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score))
