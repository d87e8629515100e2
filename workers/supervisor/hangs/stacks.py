"""Reads what `faulthandler` has printed about a rank: where its main thread is.

The threads follow each other, the main one last, each with its innermost call first:

    Thread 0x00007f5d (most recent call first):
      File "/usr/lib/python3.11/threading.py", line 324 in wait
    Current thread 0x00007f5e (most recent call first):
      File "/home/me/train.py", line 12 in <module>
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_ROOT = Path(__file__).resolve().parents[3]
#: Code that is not the program's own: Python's, installed packages', ours.
_FOREIGN = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen |^<string>")
_OURS = tuple(f"{_ROOT / name}/" for name in ("jobs", "workers", "shardyard"))
#: In which function of torch a rank waits for the others, and what that is called.
_DISTRIBUTED = "/torch/distributed/distributed_c10d.py"
_BACKWARD = ("/torch/autograd/graph.py", "_engine_run_backward")
_WRAPPERS = frozenset(("wrapper", "_wait", "wait"))


@dataclass(frozen=True, slots=True)
class StackFrame:
    file: str
    line: int
    function: str

    @property
    def is_of_program(self) -> bool:
        return not _FOREIGN.search(self.file) and not self.file.startswith(_OURS)


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where a rank is: the innermost line of the program's own, and the function of torch that it waits in."""

    frame: StackFrame | None
    waits_in: str = ""  # a collective, or backward; "" where it does neither

    def describe(self, root: str) -> str:
        """The line, without the directory that the program lies in; "" where it is not known."""
        if self.frame is None:
            return ""
        file = self.frame.file.removeprefix(root).lstrip("/") if root else self.frame.file
        return f"{file}, line {self.frame.line}, in {self.frame.function}"


def find_position(printed: str) -> RankPosition | None:
    """Where the main thread was when it last showed its stack; None where it has shown none."""
    frames = _main_stack(printed)
    return position_of(frames) if frames else None


def position_of(frames: Sequence[StackFrame]) -> RankPosition:
    """`frames` begin with the innermost."""
    own = next((index for index, frame in enumerate(frames) if frame.is_of_program), len(frames))
    names = [frame.function for frame in frames[:own] if frame.file.endswith(_DISTRIBUTED)]
    waits_in = next((name for name in reversed(names) if name not in _WRAPPERS), "")
    if not waits_in and any(frame.file.endswith(_BACKWARD[0]) and frame.function == _BACKWARD[1] for frame in frames):
        waits_in = "backward"
    return RankPosition(frames[own] if own < len(frames) else None, waits_in)


def frames_of_dump(frames: Sequence[Mapping[str, object]]) -> list[StackFrame]:
    """The frames of a call as torch's flight recorder has them.

    Raises:
        TypeError, ValueError: they are none.
    """
    return [StackFrame(str(one.get("filename")), int(str(one.get("line"))), str(one.get("name"))) for one in frames]


def _main_stack(printed: str) -> list[StackFrame]:
    frames: list[StackFrame] = []
    for line in printed.splitlines():
        if _THREAD.match(line):
            frames = []
        elif found := _FRAME.match(line):
            frames.append(StackFrame(found["file"], int(found["line"]), found["function"]))
    return frames
