"""Named places where a test makes the service fail: `SHARDYARD_FAILPOINT=name:action[,name:action...]`.

Without the variable a place costs a look at an empty table. Actions: `kill` (SIGKILL of this process), `error`
(raise OSError), `stall=SECONDS`. With `@N` behind it, an action happens at the N-th time that the place is reached, and
not before or after; without it, every time.

The variable is read when this module is imported: a rank's environment is scrubbed before its program runs, and the
forkserver, from which it came, has imported this module long before.
"""

import errno
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "SHARDYARD_FAILPOINT"


@dataclass(slots=True)
class _ArmedPoint:
    action: str
    seconds: float
    only: int  # the time that counts; 0: every time
    reached: int = 0


def reach(name: str) -> None:
    """Say that this process is at a place. Does nothing unless a test has armed it."""
    if _armed and (point := _armed.get(name)) is not None:
        _act_at(name, point)


def parse_failpoints(text: str) -> dict[str, _ArmedPoint]:
    """The places that a value of the variable arms.

    Raises:
        ValueError: it is not of the form above; the message names the part that is wrong.
    """
    return dict(_parse_point(part.strip()) for part in text.split(",") if part.strip())


def inherited_variable(environment: Mapping[str, str]) -> dict[str, str]:
    """The variable, where it is set: for processes whose environment is otherwise scrubbed."""
    return {VARIABLE: environment[VARIABLE]} if VARIABLE in environment else {}


def _parse_point(part: str) -> tuple[str, _ArmedPoint]:
    name, _, rest = part.partition(":")
    rest, _, only = rest.partition("@")
    action, _, seconds = rest.partition("=")
    if not name or action not in ("kill", "error", "stall") or (action == "stall") != bool(seconds):
        raise ValueError(f"{VARIABLE}: {part!r} is not name:kill, name:error or name:stall=SECONDS, with @N or without")
    return name, _ArmedPoint(action, float(seconds or 0), int(only or 0))


def _act_at(name: str, point: _ArmedPoint) -> None:
    point.reached += 1
    if point.only not in (0, point.reached):
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "error":
        raise OSError(errno.EIO, f"failpoint {name}")
    time.sleep(point.seconds)


_armed = parse_failpoints(os.environ.get(VARIABLE, ""))
