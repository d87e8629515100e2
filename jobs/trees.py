"""Removal of directories that users' programs have filled."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def remove(directory: Path) -> None:
    """Remove a directory and all in it, however deep that is, and where directories are closed to their owner, whom we
    are. No link is followed. It may be gone already.

    Raises:
        OSError: something of it stays.
    """
    with suppress(OSError, RecursionError):
        shutil.rmtree(directory)  # a call and an open file for each level, of which there may be too many
        return
    if os.geteuid() != 0:  # to whom nothing is closed, and whom a link that takes a name's place would lead astray
        _run("chmod", "-R", "u+rwX", "--", directory)
    done = _run("rm", "-rf", "--", directory)
    if done.returncode:
        raise OSError(f"{directory} cannot be removed: {done.stderr[-1000:].strip()}")


def _run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
