"""A position in a tree of directories, which is entered and left one directory at a time.

Trees of users' programs may be deeper than a path can say, and change while they are read. So every directory is opened
from the one above it, no link is followed, and two descriptors are open at any depth.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DirectoryCursor:
    """`fd` is the directory that was entered last, `names` are those that lead there from the top.

    Whoever has it closes it.

    Raises:
        OSError: the top cannot be opened.
    """

    def __init__(self, top: Path) -> None:
        self._top = os.open(top, _DIRECTORY)
        self._known = [_identify(self._top)]
        self.fd = os.dup(self._top)
        self.names: list[str] = []

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._top)

    def enter(self, name: str) -> None:
        """Go into a directory of the current one.

        Raises:
            OSError: it is gone, closed to us, or something else, for example a link.
        """
        self._move_to(_open_beside(name, self.fd))
        self.names.append(name)
        self._known.append(_identify(self.fd))

    def leave(self) -> int:
        """Go back to the directory above, or to the nearest one that is still where it was entered.

        Returns how many directories were left: one, unless one of those above was moved or removed.
        """
        depth = len(self.names)
        self.names.pop()
        self._known.pop()
        above = self._open_known("..", self._known[-1])  # whoever moves a directory decides what is above it
        if above is None:
            self._come_from_top()
        else:
            self._move_to(above)
        return depth - len(self.names)

    def _come_from_top(self) -> None:
        self._move_to(os.dup(self._top))
        for level, name in enumerate(self.names):
            below = self._open_known(name, self._known[level + 1])
            if below is None:
                del self.names[level:], self._known[level + 1 :]
                return
            self._move_to(below)

    def _open_known(self, name: str, known: tuple[int, int]) -> int | None:
        try:
            found = _open_beside(name, self.fd)
        except OSError:
            return None
        if _identify(found) == known:
            return found
        os.close(found)
        return None

    def _move_to(self, directory: int) -> None:
        os.close(self.fd)
        self.fd = directory


def walk_directories(
    top: Path, is_entered: Callable[[int, str], bool] | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Every directory from `top` down, open, with the names in it. Those that cannot be entered are passed over, and
    those that `is_entered`, where it is given, refuses by the directory above, which is open, and the name.

    Raises:
        OSError: `top` cannot be entered, or a directory not be listed.
    """
    return ((cursor.fd, names) for cursor, names in walk_with_names(top, is_entered))


def walk_with_names(
    top: Path, is_entered: Callable[[int, str], bool] | None = None
) -> Iterator[tuple[DirectoryCursor, list[str]]]:
    """The same with the cursor, whose names lead to the directory from the one that `top` is in."""
    with contextlib.closing(DirectoryCursor(top.parent)) as cursor:
        cursor.enter(top.name)
        to_enter = [os.listdir(cursor.fd)]
        yield cursor, to_enter[-1].copy()
        while to_enter:
            if not to_enter[-1]:
                del to_enter[-cursor.leave() :]
            else:
                name = to_enter[-1].pop()
                if (is_entered is None or is_entered(cursor.fd, name)) and _try_entering(cursor, name):
                    to_enter.append(os.listdir(cursor.fd))
                    yield cursor, to_enter[-1].copy()


def _try_entering(cursor: DirectoryCursor, name: str) -> bool:
    try:
        cursor.enter(name)
    except OSError:  # a file or a link; closed to us; gone
        return False
    return True


def _open_beside(name: str, directory: int) -> int:
    return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)


def _identify(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino
