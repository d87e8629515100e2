"""What has to be on the disk before anybody is told of it."""

import os
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
