"""Directories that every account may pass on the way to its own, unlike those that pytest makes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.files import identity
from jobs.support import fs


@contextmanager
def a_place() -> Iterator[Path]:
    """A directory that is removed afterwards. What the test puts there in place of the API has the modes that it would
    have by the API."""
    place, before = Path(tempfile.mkdtemp(prefix="sy-")), os.umask(identity.UMASK)
    place.chmod(0o711)
    try:
        yield place
    finally:
        os.umask(before)
        fs.remove_tree(place)
