"""Files that are closed to whoever makes a back-up: as an account that things can be closed to, which root is not."""

import os
import tempfile
from pathlib import Path

from jobs.support import fs
from tests.support.samples.backed_up_trees import BackedUpTree

NOBODY = 65_534


def copy_as_nobody(directory: Path) -> int:
    """Make and close files, and back them up; the exit code of the process that does."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        if os.geteuid() == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)
        tree = BackedUpTree(directory)
        for name in ("open", "secret", "listed/inner"):
            (tree.artifacts / name).parent.mkdir(exist_ok=True)
            (tree.artifacts / name).write_text("text")
        (tree.artifacts / "closed" / "inner").mkdir(parents=True)
        (tree.artifacts / "secret").chmod(0)
        (tree.artifacts / "closed").chmod(0)
        (tree.artifacts / "listed").chmod(0o400)  # its entries can be listed, and nothing of them be seen
        _, left_out = tree.copy()
        tree.restore()
        assert sorted(left_out["unreadable"].first) == [
            f"jobs/t/j/1/artifacts/{name}" for name in ("closed", "listed/inner", "secret")
        ]
        assert set(left_out) == {"unreadable"}
        made = tree.restored / "storage/jobs/t/j/1/artifacts"
        assert sorted(os.listdir(made)) == ["listed", "open"]
        os._exit(0)
    finally:
        os._exit(1)


def test_what_is_closed_to_the_one_who_makes_the_back_up_is_left_out() -> None:
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    try:
        assert copy_as_nobody(place) == 0
    finally:
        fs.remove_tree(place)
