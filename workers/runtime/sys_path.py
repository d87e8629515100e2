"""Keeps our packages and the user's apart in one process.

A bundle may have modules called `jobs`, `workers` or `tests`, and our own must neither answer to these names nor be
found by them. So before user code runs, ours are taken out of `sys.modules` and off `sys.path`; they go on working,
since what is imported holds what it needs (`workers.runtime.import_hook`). Nothing of ours may be imported after that,
but
`shardyard`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from workers.runtime import import_hook

#: Where our packages lie: the source tree, or site-packages.
HOME = Path(import_hook.ROOT)
#: Loaded parts that cannot be loaded twice in a process: a file of the user's with such a name does not replace them.
ONCE = frozenset({"torch", "numpy"})

_plain_path: tuple[str, ...] | None = None
#: What was found on the path before. Nothing looks there; to free it would copy the server's memory.
_found_before: object = None


class HidingFinder:
    """A finder that looks past our packages: needed where they lie among others in site-packages, since there even
    a directory without an `__init__.py`, earlier on the path, would lose against them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in import_hook.NAMES or name in import_hook.PUBLIC or path is not None:
            return None
        found = PathFinder.find_spec(name, [entry for entry in sys.path if not _is_home(entry)], target)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


def set_path(first: Path) -> None:
    """Give `sys.path` and `sys.modules` what a new Python would have whose first entry of the path is `first`."""
    global _found_before
    import_hook.hide_packages()
    others = plain_path()
    if HOME.name.endswith("-packages"):
        sys.meta_path.insert(0, HidingFinder)
    else:
        others = tuple(entry for entry in others if not _is_home(entry))
    sys.path[:] = [str(first), *others]
    _found_before, sys.path_importer_cache = sys.path_importer_cache, {}
    _forget_shadowed(first)


def know_plain_path(path: Sequence[str]) -> None:
    """In a new Python: this is what `plain_path` would find."""
    global _plain_path
    _plain_path = tuple(path)


def plain_path() -> tuple[str, ...]:
    """The path of a new Python in an environment without variables, without the directory of a program."""
    global _plain_path
    if _plain_path is None:
        _plain_path = _ask_for_path()
    return _plain_path


def _ask_for_path() -> tuple[str, ...]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    found = subprocess.run(
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60
    )
    return tuple(json.loads(found.stdout))


def _is_home(entry: str) -> bool:
    """Whether our packages, or a copy of them, lie here."""
    return (Path(entry) / "workers" / "runtime" / "import_hook.py").exists()


def _forget_shadowed(first: Path) -> None:
    """Take out modules in whose place a new Python would load the user's: those of `first` come before all others."""
    try:
        names = {entry.name.partition(".")[0] for entry in os.scandir(first)}
    except OSError:
        return
    for name in sorted(
        names & set(sys.modules) - ONCE - {*import_hook.PUBLIC, "__main__"} - set(sys.builtin_module_names)
    ):
        found = PathFinder.find_spec(name, [str(first)])
        if found is None or found.origin is None or FrozenImporter.find_spec(name) is not None:
            continue
        for loaded in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[loaded]
