"""Directories as a program may leave them."""

import os
from pathlib import Path

import pytest

from jobs import trees


def a_deep_directory(top: Path, levels: int) -> None:
    """Deeper than a path can say, so it is made step by step."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        above, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)


@pytest.mark.parametrize("levels", [3, 1500])
def test_a_directory_of_any_depth_is_removed(tmp_path: Path, levels: int) -> None:
    a_deep_directory(tmp_path / "top", levels)
    trees.remove(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_names_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "kept")
    trees.remove(tmp_path / "top")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    trees.remove(tmp_path / "gone")


def test_what_cannot_be_removed_is_named() -> None:
    with pytest.raises(OSError, match="/proc/self cannot be removed"):
        trees.remove(Path("/proc/self"))
