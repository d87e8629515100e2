"""Our packages in an interpreter that runs somebody else's program, without our source root on its path.

A program may bring modules of its own that are called `jobs` or `workers`. So ours are imported by a
finder that knows their names alone, in one go, and are then taken out of `sys.modules`: what they
refer to stays alive, and the program's own modules of those names are found as ever.

This file is also run by itself, by its path, where none of our packages can be imported yet: it
needs nothing but the standard library.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAMES = ("api", "jobs", "workers", "shardyard")
#: What a program may import of ours at any time.
PUBLIC = ("shardyard",)
PRIVATE = tuple(name for name in NAMES if name not in PUBLIC)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: Our modules, while they are out of `sys.modules`.
_hidden: dict[str, ModuleType] = {}
#: Names of ours that were imported when ranks could be forked, and of the last module then that is not ours.
_known: tuple[str, ...] = ()
_newest = ""


class PackageFinder:
    """Finds the named top-level packages, each in one directory, and nothing else."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        self._directories = directories

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        directory = self._directories.get(name)
        return None if directory is None else PathFinder.find_spec(name, [directory], target)


def describe_packages() -> str:
    """Where packages that ours need can be found by a Python like this one: text for `usable_packages`."""
    import msgspec

    directory = os.path.dirname(os.path.dirname(os.path.abspath(msgspec.__file__)))
    return json.dumps({"python": _python_tag(), "packages": {"msgspec": directory}})


def usable_packages(described: str) -> dict[str, str]:
    """The packages that `describe_packages` names, each with its directory, if they can work in this Python."""
    offer = json.loads(described)
    return dict(offer["packages"]) if offer["python"] == _python_tag() else {}


def _python_tag() -> str:
    """What a compiled module must have been built for."""
    return str(sys.implementation.cache_tag)


@contextmanager
def importable(borrowed: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within, our packages can be imported, whatever the path says and whatever modules of their names
    the program has. `borrowed` maps packages that ours need to their directories, for an environment
    which lacks them; such a package stays imported.
    """
    first, last = PackageFinder(dict.fromkeys(NAMES, ROOT)), PackageFinder(borrowed or {})
    theirs = _take_out(PRIVATE)
    sys.modules.update(_hidden)
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    try:
        yield
    finally:
        sys.meta_path.remove(first)
        sys.meta_path.remove(last)
        hide_packages()
        sys.modules.update(theirs)


def hide_packages() -> None:
    """Take our packages out of `sys.modules`. The public one can be imported from now on."""
    _hidden.update(_take_out(PRIVATE))
    if not any(isinstance(finder, PackageFinder) for finder in sys.meta_path):
        sys.meta_path.append(PackageFinder(dict.fromkeys(PUBLIC, ROOT)))


def remember_modules() -> None:
    """Spare what is forked from here the looking through two thousand names: it would copy the memory they lie in."""
    global _known, _newest
    _known = tuple(name for name in sys.modules if _package_of(name) in NAMES)
    _newest = next(name for name in reversed(sys.modules) if _package_of(name) not in NAMES)


def _take_out(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove the modules of these packages, and say which they were."""
    found = [name for name in _imported_names() if _package_of(name) in names]
    return {name: sys.modules.pop(name) for name in found if name in sys.modules}


def _imported_names() -> Iterator[str]:
    """Names of modules, newest first: all that may be ours are among them, some of them twice."""
    for name in reversed(sys.modules):
        if name == _newest:
            yield from _known
            return
        yield name


def _package_of(name: str) -> str:
    return name.partition(".")[0]
