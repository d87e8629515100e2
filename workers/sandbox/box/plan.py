"""What every box of a node is made of. What an attempt adds comes later, by `workers.sandbox.box.box`."""

from dataclasses import dataclass
from typing import Literal

#: Where each job gets an empty directory of its own, in memory.
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  (of the box)
#: Sockets and process ids of the system's services. What jobs need of them is shown again.
RUN = "/run"
BoxLevel = Literal["full", "user"]


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """`level` is "full" where root makes the box, and "user" where it is made in a user namespace.

    `hidden` directories are not there in the box. `shown` paths are, read-only, wherever they lie. `covers` are
    replaced by empty directories that can be passed: closed ones on the way to what is shown, and homes.
    """

    level: BoxLevel
    hidden: tuple[str, ...]
    shown: tuple[str, ...]
    covers: tuple[str, ...]
    syscalls: bytes | None  # the compiled filter
    processes: int = 4096  # of an account of the range
    accounts: tuple[int, int] | None = None  # the first one, and how many; None: jobs keep the account they are given
    groups: tuple[int, ...] = ()  # without which the GPUs' files cannot be opened
