"""Names the child that made a launcher fail: its own traceback is only in what was printed to stderr.

A program that starts others (`torch.distributed.run`, `accelerate launch`, `subprocess.run(check=True)`) fails with an
error about their exit codes. What they failed of is told by their tracebacks, which come before the launcher's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Errors about the exit codes of others.
_LAUNCHERS = re.compile(r"^([\w.]+\.)?(ChildFailedError|CalledProcessError|ProcessExitedException)\b")
#: What torch puts before each line of a traceback in a process group.
_RANK = re.compile(r"^\[rank(\d+)\]: ?")
_BEGIN = "Traceback (most recent call last):"
_FAILED = re.compile(r"^(\S.*) FAILED$", re.MULTILINE)
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChildError:
    """`error` is the last line of its traceback."""

    error: str
    traceback: str
    rank: int | None = None


def find_child_error(message: str, traceback: str, stderr: str) -> ChildError | None:
    """The error of the child that a launcher failed of; None for other errors, or where nothing was printed."""
    if not _LAUNCHERS.match(message):
        return None
    errors = [each for each in _tracebacks(stderr) if not _LAUNCHERS.match(each.error)]
    root = _ROOT_CAUSE.search(traceback)
    of_root = [each for each in errors if root is not None and each.rank == int(root[1])]
    return next(iter(of_root or errors[-1:]), None)


def describe_child_error(message: str, traceback: str, child: ChildError) -> str:
    """One line: what failed, and of what."""
    name, root = _FAILED.search(traceback), _ROOT_CAUSE.search(traceback)
    if name is None or root is None:
        return f"{message.rstrip('.')}: {child.error}"
    return f"{name[1]} failed on rank {root[1]} with exit code {root[2]}: {child.error}"


def _tracebacks(text: str) -> Iterator[ChildError]:
    """The tracebacks in a text, those of several ranks apart, in the order of their ends."""
    open_blocks: dict[int | None, list[str]] = {}
    for line in text.splitlines():
        prefix = _RANK.match(line)
        rank, words = (int(prefix[1]), line[prefix.end() :]) if prefix else (None, line)
        block = open_blocks.get(rank)
        if words == _BEGIN:
            open_blocks[rank] = [words]
        elif block is not None and words[:1] in (" ", ""):
            block.append(words)
        elif block is not None:
            del open_blocks[rank]
            yield ChildError(words.strip(), "\n".join([*block, words]) + "\n", rank)
