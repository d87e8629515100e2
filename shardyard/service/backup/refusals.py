"""Why a back-up, or a restore, is not made."""

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from shardyard.contract.errors import InvalidRequest, ShardyardError


class BackupError(ShardyardError):
    """A back-up cannot be made, is not valid, or is damaged."""

    code = "backup_failed"


def refuse_unless_empty(directory: Path, why: str, known: Collection[str] = ()) -> None:
    """Raises InvalidRequest if something but the `known` names is in a directory, which need not be there."""
    if directory.exists() and set(os.listdir(directory)) - set(known):
        raise InvalidRequest(f"{directory} is not empty; {why}")


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raises BackupError for an OSError."""
    try:
        yield
    except OSError as error:
        raise BackupError(f"cannot write to the disk: {error}") from error
