"""Rules on the files of a bundle: names that mean the same on every file system that unpacks them, and sizes.

The client packs by these rules, and the service checks uploads against them.
"""

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from shardyard.contract.errors import BadBundle
from shardyard.contract.plain_text import describe_unsafe, find_unsafe

MAX_PATH_BYTES = 1000
#: What common file systems take for one part of a path.
MAX_PART_BYTES = 255
MAX_PARTS = 64
#: Files and directories of one bundle, also those directories that are only a part of a name: each becomes an inode.
MAX_NAMES = 10_000
#: Longest part of a name that an error repeats.
MAX_SHOWN = 100

_MIB: Final = 1024 * 1024
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """What a bundle may unpack to, in bytes where not said otherwise."""

    entries: int = MAX_NAMES
    file: int = 256 * _MIB
    total: int = 1024 * _MIB
    #: Most bytes for each byte of the zip, where it unpacks to more than `unpressed`.
    ratio: int = 200
    unpressed: int = 32 * _MIB


DEFAULT_LIMITS: Final = BundleLimits()


def quote_path(path: str) -> str:
    """A hostile name as an error may show it: quoted, shortened, and escaped where it is not printable."""
    return repr(path if len(path) <= MAX_SHOWN else path[:MAX_SHOWN] + "...")


class BundleNames:
    """The names of one bundle, taken one by one: each must be safe by itself and collide with none before it."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        #: Folded path -> how it was spelled.
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()
        #: Directory -> its folded path.
        self._directories: dict[str, str] = {"": ""}
        self._announced: set[str] = set()

    def add(self, name: str) -> None:
        """Take the name of an entry; one that ends in "/" is a directory's.

        Raises:
            BadBundle: it is unsafe, collides, or is one too many.
        """
        wrong = _find_unsafe_part(name)
        if wrong:
            raise BadBundle(f"{quote_path(name)} {wrong}")
        path = name.removesuffix("/")
        if path == name:
            self._reserve(path)
            self._files.add(path)
            return
        if name in self._announced:
            raise BadBundle(f"{quote_path(name)} is in the zip twice")
        self._announced.add(name)
        self._add_directory(path)

    def _add_directory(self, path: str) -> str:
        """The folded path of a directory, which is taken with those above it where it was not."""
        if path not in self._directories:
            self._directories[path] = self._reserve(path)
        return self._directories[path]

    def _reserve(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        folded = f"{self._add_directory(parent)}/{_fold_name(name)}"
        before = self._spelled.setdefault(folded, path)
        if before != path:
            raise BadBundle(
                f"{quote_path(path)} and {quote_path(before)} are one name on some file systems; rename one"
            )
        if path in self._files:
            raise BadBundle(f"{quote_path(path)} is in the zip twice, or both as a file and as a directory")
        if path in self._directories:
            raise BadBundle(f"{quote_path(path)} is in the zip both as a file and as a directory")
        if len(self._spelled) > self._limit:
            raise BadBundle(f"a bundle may have {self._limit} files and directories")
        return folded


def may_be_installed(module: str, names: Collection[str]) -> bool:
    """Whether a module may come from the Python environment of a job (`accelerate.commands.launch`), because nothing of
    its first name is among `names`, the files and directories that its program starts beside. A name without a dot is
    more likely a mistake."""
    first, dot, _ = module.partition(".")
    return bool(dot) and not {first, f"{first}.py"} & {*names}


def _fold_name(name: str) -> str:
    """One spelling for all names that a file system without case, or with normalised names, takes for the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _find_unsafe_part(name: str) -> str:
    """What is wrong with a name by itself; empty when nothing is."""
    if not name:
        return "is an empty name"
    if name.startswith("/"):
        return "is absolute; pack with names relative to the directory"
    if "\\" in name:
        return 'holds a backslash; pack with "/" between directories'
    if _DRIVE.match(name):
        return "begins with a drive letter; pack with names relative to the directory"
    if unsafe := find_unsafe(name):
        return describe_unsafe(unsafe)
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
