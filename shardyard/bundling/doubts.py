"""What makes it doubtful that a whole directory was meant to be sent: it is not a project, or it is large."""

import os
from pathlib import Path

from shardyard import formatting
from shardyard.bundling.pack import FileSelection, fullest_entries, largest_entries
from shardyard.contract.plain_text import escape_unsafe

MANY_FILES = 2_000
MANY_BYTES = 100 * 1024 * 1024
#: A directory that has one of these, or is below one that has, is a project.
PROJECT_MARKS = (
    *(".git", ".hg", ".svn", ".jj", ".gitignore"),
    *("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "environment.yml", "environment.yaml"),
    *("Pipfile", "poetry.lock", "uv.lock", "pixi.toml"),
)


def find_doubts(directory: Path, chosen: FileSelection, *, named: bool) -> list[str]:
    """Why to ask before a selection of `directory` is sent, a sentence each. `named`: the user has named it."""
    root = directory.resolve()
    doubts = []
    if _is_personal(root):
        doubts.append(f"{root} is {'the root of the file system' if root == Path('/') else 'your home directory'}")
    elif not named and not is_in_project(root):
        doubts.append(
            f"{root} is not a project: neither it nor a directory above it has .git, pyproject.toml, requirements.txt "
            "or the like"
        )
    if len(chosen.files) > MANY_FILES:
        most = ", ".join(f"{escape_unsafe(path)} {count:,}" for path, count in fullest_entries(chosen))
        doubts.append(f"it has {len(chosen.files):,} files, more than {MANY_FILES:,}: {most}")
    if chosen.bytes > MANY_BYTES:
        sizes = (f"{escape_unsafe(path)} {formatting.byte_count(size)}" for path, size in largest_entries(chosen))
        size, most = formatting.byte_count(chosen.bytes), formatting.byte_count(MANY_BYTES)
        doubts.append(f"it has {size}, more than {most}: {', '.join(sizes)}")
    return doubts


def is_in_project(root: Path) -> bool:
    """Whether a directory, or one above it, looks like a project. What a home directory has says nothing of what is
    below it: many keep theirs under version control."""
    for directory in (root, *root.parents):
        if _is_personal(directory):
            return False
        if any(os.path.lexists(directory / mark) for mark in PROJECT_MARKS):
            return True
    return False


def _is_personal(directory: Path) -> bool:
    return directory in (Path("/"), Path.home().resolve())
