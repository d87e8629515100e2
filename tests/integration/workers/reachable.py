"""Runs a command where every account can reach this Python and this source tree, wherever they are kept.

    unshare --mount --propagation private python reachable.py COMMAND...

Directories on the way that others may not pass are replaced, in a mount namespace of the command's own, by ones that
they may, with the same entries. Nothing changes outside it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

NEEDED = (Path(sys.executable), Path(sys.executable).absolute(), Path(__file__))


@cache
def why_not() -> str:
    """Why no test here can run jobs under another account; "" when they can."""
    if os.geteuid() != 0:
        return "only root can give jobs another account"
    if _barred([Path(tempfile.gettempdir(), "anything")]):
        return f"{tempfile.gettempdir()} is out of other accounts' reach; set TMPDIR"
    if not barred():
        return ""
    tried = subprocess.run([*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    return f"Python is out of other accounts' reach: {tried.stderr}" if tried.returncode else ""


def command(*wanted: str) -> list[str]:
    return [*_UNSHARE, sys.executable, __file__, *wanted] if barred() else list(wanted)


_UNSHARE = ("unshare", "--mount", "--propagation", "private")


def barred() -> list[Path]:
    """Directories on the way that others may not pass, the outermost first."""
    return _barred(NEEDED)


def _barred(paths: Iterable[Path]) -> list[Path]:
    ways = {directory for path in paths for directory in (*path.resolve().parents, *path.parents)}
    return sorted(directory for directory in ways if not directory.stat().st_mode & 0o001)


def replace(directory: Path) -> None:
    hold = Path(tempfile.mkdtemp(prefix="sy-"))
    _mount("--bind", directory, hold)
    _mount("-t", "tmpfs", "-o", "mode=0711", "none", directory)
    for entry in os.scandir(hold):
        target = directory / entry.name
        if entry.is_symlink():
            target.symlink_to(os.readlink(entry.path))
        elif entry.is_dir() or entry.is_file():
            target.mkdir() if entry.is_dir() else target.touch()
            _mount("--rbind", entry.path, target)
    subprocess.run(["umount", "--lazy", hold], check=True)
    hold.rmdir()


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    while ways := barred():
        replace(ways[0])
    os.execvp(sys.argv[1], sys.argv[1:])
