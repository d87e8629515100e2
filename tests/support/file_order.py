"""Which process of pytest-xdist runs which file: those that share a service are run by one process as long as others
have other files to run, since each process that runs one of them starts a service of its own."""

from collections.abc import Collection, Mapping

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: What the files of a directory share: a whole service, or a server that has torch imported. What takes longest comes
#: first: each process begins with another one, and runs files that share nothing when it is through with that.
SHARED = {
    "tests/integration/workers/": "worker",
    "tests/faults/": "site",
    "tests/integration/training/": "torch",
    "tests/unit/workers/probe/": "torch",
    "tests/browser/": "browser",
}


class SharedServices(LoadFileScheduling):  # type: ignore[misc]
    """The order of `--dist loadfile`, but for files that share a service."""

    _takers: Mapping[str, WorkerController] = {}

    def _assign_work_unit(self, node: WorkerController) -> None:
        own = [what for what, taker in self._takers.items() if taker is node]
        file = choose_file(self.workqueue, own, self._takers)
        if (what := shared_by(file)) and what not in self._takers:
            self._takers = {**self._takers, what: node}
        self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)


def choose_file(waiting: Collection[str], own: Collection[str], taken: Collection[str]) -> str:
    """The next file for a process that has started the services `own`; `taken`: those that some process has started.

    The first file that shares one of its own services, or else one that nobody has started, or none; or else the last
    file of another process.
    """
    left = {file: shared_by(file) for file in waiting}
    fresh = [what for what in SHARED.values() if what not in taken and what in left.values()]
    for wanted in (own, fresh[:1], ("",)):
        if found := next((file for file, what in left.items() if what in wanted), None):
            return found
    return next(reversed(left))


def shared_by(file: str) -> str:
    """What a file shares with others; "": nothing that takes long to start."""
    return next((what for directory, what in SHARED.items() if file.startswith(directory)), "")
