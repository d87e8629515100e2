"""Files and directories on disk: replaced at once, names that are synced, and trees of users' programs, removed."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk: of files that were made, renamed or removed there.

    Raises:
        OSError: the disk refuses, or it is no directory.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, body: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one. It is not synced: what need not outlive the host's
    power.

    Raises:
        OSError: the disk refuses.
    """
    draft = path.with_name(f".{path.name}.part")
    draft.write_bytes(body)
    draft.replace(path)


def remove_tree(directory: Path) -> None:
    """Remove a directory and all in it, however deep that is, and where directories are closed to their owner, whom we
    are. No link is followed. It may be gone already.

    Raises:
        OSError: something of it stays.
    """
    with suppress(OSError, RecursionError):
        shutil.rmtree(directory)  # a call and an open file for each level, of which there may be too many
        return
    if os.geteuid() != 0:  # to whom nothing is closed, and whom a link that takes a name's place would lead astray
        _run_command("chmod", "-R", "u+rwX", "--", directory)
    done = _run_command("rm", "-rf", "--", directory)
    if done.returncode:
        raise OSError(f"{directory} cannot be removed: {done.stderr[-1000:].strip()}")


def _run_command(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
