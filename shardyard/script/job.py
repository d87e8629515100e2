"""The functions by which a training script reports to its job; users import them as `shardyard.job`.

Everything here is optional.

Outside a job the same script runs unchanged: `log` and `progress` do nothing, `checkpoint` returns
its path as it is, `resume_dir` is None, `should_stop` is False, `output_dir` is `./output`, `weights` are equal, and
one line on standard error says so. Wrong arguments raise the same errors inside a job and outside.

Only the standard library is needed to import this module.
"""

import operator
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, SupportsFloat, SupportsIndex

from shardyard.script import checkpoint as saving

__all__ = ["log", "progress", "output_dir", "checkpoint", "resume_dir", "should_stop", "weights"]

#: Where files that outlive the job belong; every process of a job has it in its environment.
OUTPUT_VARIABLE: Final = "SHARDYARD_OUTPUT_DIR"
#: The output directory of a script that runs outside a job.
OUTSIDE: Final = "output"
#: Where the checkpoint is from which an attempt goes on.
RESUME_VARIABLE: Final = "SHARDYARD_RESUME_DIR"
#: The weight of each device, on all nodes, in the order of the ranks.
WEIGHTS_VARIABLE: Final = "SHARDYARD_WEIGHTS"
#: How long a checkpoint waits for room, and how often it looks.
ROOM_SECONDS: Final = 600.0
ROOM_POLL_SECONDS: Final = 0.2
MAX_NAME_CHARACTERS: Final = 200
#: Names of one process that are counted and sent; a job keeps no more series than these.
MAX_NAMES: Final = 8192
MAX_STEP: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _JobLink:
    """The link of this process to its job. In a child that is forked later, `pid` is its parent's, so it has no
    link."""

    emit: Callable[[Any], None]
    stopping: Callable[[], bool]
    output_dir: Path
    device: int
    metric: Callable[[int, str, int, float, float], Any]
    progress: Callable[[int, int | None], Any]
    pid: int
    holding: Callable[[], bool] = lambda: False
    steps: dict[str, "count[int]"] = field(default_factory=dict)  # by name: what comes next where no step is given


_link: _JobLink | None = None
_said: set[str] = set()


def log(name: str, value: SupportsFloat, step: SupportsIndex | None = None) -> None:
    """Add a point to the series `name`. Without a step, the points of a series count from 0.

    Rank 0 speaks for the job; what another rank logs belongs to that rank's device.

    Raises:
        TypeError, ValueError: the name, the value or the step is not usable; the message says which.
    """
    _check_name(name)
    number, point = _float_of(name, value), None if step is None else _whole_number("step", step)
    link = _current_link()
    if link is None:
        return
    if name not in link.steps and len(link.steps) >= MAX_NAMES:
        _print_once(f"more than {MAX_NAMES} different names were logged; points of further names are not kept")
        return
    steps = link.steps.setdefault(name, count())
    link.emit(link.metric(link.device, name, next(steps) if point is None else point, number, time.time()))


def progress(step: SupportsIndex, steps: SupportsIndex | None = None) -> None:
    """Report that `step` of `steps` are done; without `steps`, the total is not known.

    Raises:
        TypeError, ValueError: one of them is not a whole number, or is negative.
    """
    done, total = _whole_number("step", step), None if steps is None else _whole_number("steps", steps)
    link = _current_link()
    if link is not None:
        link.emit(link.progress(done, total))


def output_dir() -> Path:
    """The directory whose files are stored with the job, as an absolute path; it exists. Outside a job: `./output`."""
    path = _kept_dir()
    if path is None:
        _say_outside()
        path = Path(OUTSIDE).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def checkpoint(path: str | os.PathLike[str]) -> Path:
    """Store a copy of a file or directory, under its own name in `checkpoints/` of the output directory.

    The copy is complete and on disk, or it is not there: it is written beside its place, synced, and
    then renamed, and takes the place of an earlier one of that name. Returns the path of the copy. If
    the job is started again, `resume_dir` has the last copy that was made, so save all that you need
    to continue as one file or directory. Under ddp and fsdp, call it on one rank, once the others have
    written their parts. Where the node has more files to carry to the service than it may keep, it
    waits until there is room, for ten minutes at most.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        ValueError: there are more than 10,000 files in it.
        OSError: it cannot be read, or the copy cannot be written.
    """
    source = Path(path)
    source.stat()
    kept = _kept_dir()
    if kept is None:
        _say_outside()
        return source
    _await_room()
    return saving.save_checkpoint(source, kept)


def resume_dir() -> Path | None:
    """The directory with the newest complete checkpoint of the job's earlier attempts, under the name of the saved file
    or directory; for reading only. None at a job's first start, if no checkpoint was saved, and outside a job."""
    given = os.environ.get(RESUME_VARIABLE)
    return Path(given) if given else None


def should_stop() -> bool:
    """Whether the job must end (a cancel, a limit, a stop of the service): SIGTERM has arrived, and SIGKILL follows."""
    link = _current_link()
    return link is not None and link.stopping()


def weights() -> tuple[float, ...]:
    """A weight for each device of the job, in the order of ranks: `parallelism.weights` of its spec, or equal ones.
    Outside a job: equal ones for each rank (`WORLD_SIZE`). Nothing but the script applies them."""
    given = os.environ.get(WEIGHTS_VARIABLE)
    if given:
        return tuple(map(float, given.split(",")))
    return (1.0,) * int(os.environ.get("WORLD_SIZE", "1"))


def _await_room() -> None:
    """Wait while the node has no room for a checkpoint; not where the job must end, which may be its last one."""
    link = _link if _link is not None and _link.pid == os.getpid() else None
    if link is None or not link.holding():
        return
    _print_once("checkpoint() waits: this node has more to carry to the service than it may keep")
    deadline = time.monotonic() + ROOM_SECONDS
    while link.holding() and not link.stopping():
        if time.monotonic() > deadline:
            _print_once(f"checkpoint() has waited for {ROOM_SECONDS:.0f} seconds, and continues without room")
            return
        time.sleep(ROOM_POLL_SECONDS)


# -- the other side --------------------------------------------------------------------------------


def connect(
    emit: Callable[[Any], None],
    stopping: Callable[[], bool],
    output_dir: str | os.PathLike[str],
    device: int = -1,
    *,
    metric: Callable[[int, str, int, float, float], Any],
    progress: Callable[[int, int | None], Any],
    holding: Callable[[], bool] = lambda: False,
) -> None:
    """Connect this process to its job. The service calls it before any of the user's code.

    `emit` sends the records that `metric` (device, name, step, value, time) and `progress` (step, steps) make.
    `stopping` tells whether SIGTERM has come, and `holding` whether the node has no room for a checkpoint. `device` is
    what series belong to: -1, the job as a whole, for rank 0, else the rank's logical device.
    """
    global _link
    _link = _JobLink(emit, stopping, Path(output_dir), device, metric, progress, os.getpid(), holding)


def carry_over(stopping: Callable[[], bool]) -> None:
    """Connect a forked child like its parent. The service calls it if the parent's `emit` also works in children."""
    global _link
    if _link is not None:
        _link = replace(_link, stopping=stopping, pid=os.getpid(), steps={})


def belong_to(device: int) -> None:
    """Assign the series of this process to `device` from now on, as in `connect`. The service calls it."""
    global _link
    if _link is not None:
        _link = replace(_link, device=device)


def _current_link() -> _JobLink | None:
    """The link of this process; if there is none, the reason is printed once."""
    if _link is not None and _link.pid == os.getpid():
        return _link
    if _kept_dir() is None:
        _say_outside()
    else:
        _print_once("this process has no connection to its job: what it logs is not kept")
    return None


def _kept_dir() -> Path | None:
    if _link is not None:
        return _link.output_dir
    given = os.environ.get(OUTPUT_VARIABLE)
    return Path(given) if given else None


def _say_outside() -> None:
    _print_once(f"not running in a job: nothing is recorded, and output goes to ./{OUTSIDE}")


def _print_once(words: str) -> None:
    if words not in _said:
        _said.add(words)
        print(f"shardyard.job: {words}", file=sys.stderr)


# -- arguments -------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"log: name is a {type(name).__name__}; give a str")
    if not (0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable()):
        raise ValueError(f"log: name {name[:40]!r} is not usable; give 1 to {MAX_NAME_CHARACTERS} printable characters")


def _float_of(name: str, value: SupportsFloat) -> float:
    detach = getattr(value, "detach", None)  # torch warns of a number made of a tensor that has a gradient
    try:
        return float(value if detach is None else detach())
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        raise TypeError(f"log: the value of {name!r} is not one number: {error}") from None


def _whole_number(name: str, value: SupportsIndex) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}; give a whole number") from None
    if not 0 <= whole <= MAX_STEP:
        raise ValueError(f"{name} is {whole}; give a whole number from 0")
    return whole
