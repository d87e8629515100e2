"""Plans the boxes of a node: what in its file system is the service's own, and what ranks need of the rest."""

import os
import pwd
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from jobs.model.settings import Settings
from jobs.storage.target import target_of
from workers.runtime import import_hook
from workers.sandbox.box.plan import RUN, BoxLevel, BoxPlan

#: What jobs need of a directory that is covered in every box.
SHOWN_OF_RUN = ("/run/nvidia-persistenced", "/run/nvidia-fabricmanager", "/run/systemd/resolve", "/run/resolvconf")


def plan_box(settings: Settings, level: BoxLevel, pythons: Iterable[Path], syscalls: bytes | None) -> BoxPlan:
    """A plan for the boxes of this node; `pythons` are those that jobs may name."""
    home = _home_directory()
    hidden = tuple(sorted({str(path) for path in _find_private_paths(settings)}))
    shown = tuple(sorted({str(path) for path in _find_needed_paths(settings, pythons)}))
    covers = {RUN, home} - {""}
    if level == "full":  # another account cannot pass what its owner can
        covers |= {str(directory) for path in shown for directory in _closed_parents(Path(path))}
    return BoxPlan(level, hidden, shown, tuple(sorted(covers, key=len)), syscalls)


def _home_directory() -> str:
    """The home of the service's account; "" where it has none of its own."""
    try:
        home = os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return ""
    return home if home not in ("/", "/nonexistent") and os.path.isdir(home) else ""


def _find_private_paths(settings: Settings) -> Iterator[Path]:
    """Directories that the service keeps for itself."""
    yield _resolve(target_of(settings).root)
    yield _resolve(settings.state_dir)
    files = (settings.admin_token_file, settings.secret_key_file, settings.tls_key, settings.node_token_file)
    yield from (_resolve(file).parent for file in files if file is not None)
    for socket in redis_sockets(settings):
        yield _resolve(Path(socket)).parent


def redis_sockets(settings: Settings) -> Iterator[str]:
    for url in {settings.control_url(), settings.telemetry()}:
        if url.startswith("unix://"):
            yield url.removeprefix("unix://").rpartition("@")[2].partition("?")[0]


def _find_needed_paths(settings: Settings, pythons: Iterable[Path]) -> Iterator[Path]:
    """What ranks read: Pythons with all that they import, and data."""
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), Path(import_hook.ROOT)]
    found += [Path(entry) for entry in sys.path if entry and os.path.exists(entry)]
    for python in pythons:
        found += _prefixes_of(python)
    found += [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    found += [Path(path) for path in SHOWN_OF_RUN]
    if settings.data_root is not None:
        found.append(settings.data_root.expanduser())
    yield from (path for each in found for path in (each.absolute(), _resolve(each)) if path.exists())


def _prefixes_of(python: Path) -> Iterator[Path]:
    """The directory of a Python, and of the one that a virtual environment was made with."""
    prefix = python.absolute().parent.parent
    yield prefix
    yield _resolve(python).parent.parent
    try:
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return
    for key, _, value in (line.partition("=") for line in lines):
        if key.strip() == "home":
            yield Path(value.strip()).parent


def _closed_parents(path: Path) -> Iterator[Path]:
    """Directories above a path that another account may not pass."""
    for directory in path.parents:
        if not directory.stat().st_mode & stat.S_IXOTH:
            yield directory


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path.expanduser()))
