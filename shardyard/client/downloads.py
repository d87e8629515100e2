"""Writes downloads to disk, atomically."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shardyard.contract.errors import InvalidRequest


def target_path(path: str, to: str | os.PathLike[str] | None) -> Path:
    """The path of a download: `to`, or the artifact's own name in the directory `to`, by default the current one.

    Raises:
        InvalidRequest: the artifact's path does not end in the name of a file.
    """
    target, name = Path("." if to is None else to), Path(path).name
    if not target.is_dir():
        return target
    if name in ("", ".."):
        raise InvalidRequest(f"{path!r} does not end in the name of a file")
    return target / name


@contextlib.contextmanager
def open_draft(target: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces the target when it is complete, and is deleted otherwise. Raises OSError."""
    beside = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
