"""Which names the files of a bundle may have, so that they mean the same on every file system that unpacks them."""

import re
import unicodedata

from jobs.errors import BadBundle

MAX_PATH_BYTES = 1000
#: What common file systems take for one part of a path.
MAX_PART_BYTES = 255
MAX_PARTS = 64
#: Longest part of a name that an error repeats.
MAX_SHOWN = 100

_DRIVE = re.compile(r"[A-Za-z]:")
#: Control characters, lone surrogates, and what breaks a line where names are listed.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def shown(path: str) -> str:
    """A hostile name as an error may show it: quoted, escaped, cut."""
    return ascii(path if len(path) <= MAX_SHOWN else path[:MAX_SHOWN] + "...")


class Names:
    """The names of one bundle, taken one by one: each must be safe by itself and collide with none before it."""

    def __init__(self) -> None:
        #: Folded path -> how it was spelled, and whether it is a file.
        self._taken: dict[str, tuple[str, bool]] = {}
        self._directories: set[str] = set()

    def add(self, name: str) -> None:
        """Take the name of an entry; one that ends in "/" is a directory's.

        Raises:
            BadBundle: it is unsafe, or collides.
        """
        wrong = _unsafe(name)
        if wrong:
            raise BadBundle(f"{shown(name)} {wrong}")
        is_file = not name.endswith("/")
        if not is_file:
            if name in self._directories:
                raise BadBundle(f"{shown(name)} is in the zip twice")
            self._directories.add(name)
        parts = name.rstrip("/").split("/")
        for depth in range(1, len(parts)):
            self._take("/".join(parts[:depth]), is_file=False)
        self._take("/".join(parts), is_file=is_file)

    def _take(self, path: str, *, is_file: bool) -> None:
        folded = _folded(path)
        if folded not in self._taken:
            self._taken[folded] = (path, is_file)
            return
        spelled, was_file = self._taken[folded]
        if spelled != path:
            raise BadBundle(f"{shown(path)} and {shown(spelled)} are one name on some file systems; rename one")
        if was_file or is_file:
            what = "twice" if was_file and is_file else "both as a file and as a directory"
            raise BadBundle(f"{shown(path)} is in the zip {what}")


def _folded(path: str) -> str:
    """One spelling for all names that a file system without case, or with normalised names, takes for the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def _unsafe(name: str) -> str:
    """What is wrong with a name by itself; empty when nothing is."""
    if not name:
        return "is an empty name"
    if name.startswith("/"):
        return "is absolute; pack with names relative to the directory"
    if "\\" in name:
        return 'holds a backslash; pack with "/" between directories'
    if _DRIVE.match(name):
        return "begins with a drive letter; pack with names relative to the directory"
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        return "holds a control character"
    if len(name.encode()) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        return 'holds ".."'
    if "" in parts or "." in parts:
        return 'holds an empty part or "."'
    if len(parts) > MAX_PARTS:
        return f"is more than {MAX_PARTS} directories deep"
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"has a part longer than {MAX_PART_BYTES} bytes"
    return ""
