"""The release before this one, to run beside it: from the history of the repository."""

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.faults.scene.machine import PREVIOUS_RELEASE, ROOT


def unpack_previous(directory: Path) -> Path:
    """The sources of the release before, in a new directory. They run with the packages of this one."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", PREVIOUS_RELEASE, "api", "jobs", "workers", "shardyard"],
        check=True,
        capture_output=True,
    ).stdout
    directory.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")
    return directory
