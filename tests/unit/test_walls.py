"""What a module may do depends on the process that it runs in: import torch, start threads, hold credentials, fork.

Each table below names the packages and modules that may. A module that does so and is in none of them fails here, as
does an entry that is no longer needed. Lazy imports count; imports for type checkers alone do not.
"""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "jobs", "workers", "shardyard")
#: In one folder: a reader looks over them at a glance.
MOST_MODULES = 20

#: A rank imports torch. The forkserver has it in memory for what it forks, and calls nothing of it that computes. A
#: supervisor runs torch's TCPStore for the rendezvous. No other process has torch: contracts of import-linter say who
#: may reach these.
TORCH = {
    "workers.training",
    "workers.probe",
    "workers.rehearsal",
    "workers.rank.preload",
    "workers.rank.process",  # the number of threads of a rank
    "workers.runtime.process_groups",  # called in ranks and their descendants, once they import torch.distributed
    "workers.runtime.private_store",  # called by `process_groups`
    "workers.node.forkserver",  # asks whether CUDA was initialised, after which no process may be forked
    "workers.node.preload",
    "workers.supervisor.rendezvous",  # TCPStore
    "shardyard.script.sampler",  # called in ranks, whose data is torch's
    "shardyard.script.node_pairs.measure_pairs",  # a script that is submitted: it runs in ranks
}

#: The forkserver has one thread, always: what is forked from several threads may inherit a lock that is never
#: released. A supervisor and a node's worker start theirs when everything is forked.
THREADS = {
    "api",
    "jobs.scheduling.scheduler",
    "shardyard.service.backup.bucket_mirror",
    "jobs.storage.objects",  # parts of a file that are read at a time; its users are the API and carriers
    "shardyard.cli.live.top",
    "shardyard.client",
    "workers.node.agent",
    "workers.node.disks.watch",
    "workers.node.hardware.sampler",
    "workers.carrier.thread",
    "workers.node.janitor",
    "workers.node.carrying.leftovers",
    "workers.supervisor.checkpoints",
    "workers.supervisor.lease",
    "workers.supervisor.limits.background_meter",
    "workers.supervisor.telemetry",
    "workers.training",
    "workers.rehearsal",
    "workers.runtime.context",  # the thread that sends a rank's records
    "workers.probe.step_profiler",  # the thread that sends a trace
}

#: Addresses and passwords of both Redis servers, the key of secrets, and what a storage asks for. Ranks run the code of
#: users: nothing that they are forked with, or import, holds any. A supervisor reads them when its ranks are forked.
CREDENTIALS = {
    "api",
    "jobs.model.settings",
    "jobs.store",
    "jobs.scheduling",
    "jobs.files.identity",  # compares the shared directory with the store that its caller has connected
    "jobs.files.service_disks",  # reads from the settings which directories the service needs
    "shardyard.service",
    "workers.app",
    "jobs.files.remote_proof",  # compares the remote with the store that its caller has connected
    "workers.node",
    "workers.provider.main",
    "workers.provider.pool_keeper",
    "workers.sandbox.box.choice",
    "workers.sandbox.box.planner",  # from the settings of its worker, as `check`
    "workers.sandbox.check",  # reads from the settings of its worker which paths the service keeps for itself
    "workers.supervisor.carriage",
    "workers.supervisor.ending.pending_end",
    "workers.supervisor.lease",
    "workers.supervisor.main",
    "workers.supervisor.process_setup",  # reads them from a pipe, when its caller has forked
    "workers.supervisor.telemetry.shipper",
}
#: Modules in packages of the tables above that must do without credentials and threads.
FORKSERVER = {"workers.node.forkserver", "workers.node.preload"}

#: The forkserver forks supervisors, a supervisor forks ranks, or the first process of its box, which then does.
#: `worker_monitor` forks the worker that it watches, which starts again from nothing.
FORKS = {
    "workers.node.forkserver",
    "workers.node.worker_monitor",
    "workers.provider.slurm",  # sets what its commands inherit between fork and exec; the process has one thread
    "workers.rank.handle",
    "workers.sandbox.box.init",
}

IMPORTERS = {"import_module", "__import__"}
REDIS_LIBRARIES = {"redis", "valkey", "glide", "glide_sync"}
CREDENTIAL_MODULES = ("jobs.store.client", "jobs.model.settings", "jobs.support.secret_keys", "workers.carrier.access")
#: The last part of a name. What takes one as an argument, such as a `partial`, counts as well.
THREAD_STARTERS = {
    "Thread",
    "ThreadPool",
    "ThreadPoolExecutor",
    "ThreadingHTTPServer",
    "ThreadingMixIn",
    "Timer",
    "run_in_executor",
    "run_in_threadpool",
    "run_sync",
    "start_new_thread",
    "to_thread",
}
FORK_CALLS = {
    "concurrent.futures.ProcessPoolExecutor",
    "multiprocessing.Pool",
    "multiprocessing.Process",
    "multiprocessing.get_context",
    "multiprocessing.spawn",
    "os.fork",
    "os.forkpty",
    "pty.fork",
}


def modules() -> dict[str, Path]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {_name(path): path for path in sorted(files)}


def _name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, but for those under `if TYPE_CHECKING`."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        found.append(node)
        waiting += ast.iter_child_nodes(node)
    return tuple(found)


@cache
def imported_names(path: Path) -> frozenset[str]:
    """Modules that a file imports, and what it imports from them, as dotted names; also those that it names to Python
    as text."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in IMPORTERS:
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return frozenset(names)


@cache
def used_names(path: Path) -> frozenset[str]:
    """What a file calls, hands to a call, or derives classes from, as dotted names: `mp.Process` is
    `multiprocessing.Process` where the file imports that as `mp`."""
    aliases = _aliases(path)
    used: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            values: list[ast.expr] = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, ast.ClassDef):
            values = node.bases
        else:
            continue
        for name in (ast.unparse(value) for value in values if isinstance(value, ast.Name | ast.Attribute)):
            first, _, rest = name.partition(".")
            used.add(f"{aliases.get(first, first)}.{rest}".rstrip("."))
    return frozenset(used)


def _aliases(path: Path) -> dict[str, str]:
    """What imports call things, by their dotted names."""
    found: dict[str, str] = {}
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports_torch(path: Path) -> bool:
    return any(name.split(".")[0] == "torch" for name in imported_names(path))


def starts_threads(path: Path) -> bool:
    return any(name.rpartition(".")[2] in THREAD_STARTERS for name in used_names(path))


def holds_credentials(path: Path) -> bool:
    names = imported_names(path)
    if any(name.split(".")[0] in REDIS_LIBRARIES for name in names):
        return True
    return any(name == module or name.startswith(f"{module}.") for name in names for module in CREDENTIAL_MODULES)


def forks(path: Path) -> bool:
    calls = (node for node in nodes_of(path) if isinstance(node, ast.Call))
    if any(keyword.arg == "preexec_fn" for call in calls for keyword in call.keywords):
        return True
    return any(name.removeprefix("torch.") in FORK_CALLS for name in used_names(path) | imported_names(path))


WALLS: list[tuple[Callable[[Path], bool], set[str]]] = [
    (imports_torch, TORCH),
    (starts_threads, THREADS),
    (holds_credentials, CREDENTIALS),
    (forks, FORKS),
]


def entry_of(module: str, table: set[str]) -> str | None:
    """The entry of a table that a module falls under: itself, or a package that it is in."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in table), None)


@pytest.mark.parametrize(("does", "table"), WALLS, ids=[does.__name__ for does, _ in WALLS])
def test_only_the_modules_of_the_table_may(does: Callable[[Path], bool], table: set[str]) -> None:
    doing = [module for module, path in modules().items() if does(path)]
    assert [module for module in doing if entry_of(module, table) is None] == []
    assert table - {entry_of(module, table) for module in doing} - {"jobs.model.settings"} == set()


def test_the_forkserver_holds_no_credentials_and_starts_no_thread() -> None:
    found = modules()
    assert [module for module in sorted(FORKSERVER) if holds_credentials(found[module])] == []
    assert [module for module in sorted(FORKSERVER) if starts_threads(found[module])] == []


@pytest.mark.parametrize(
    ("does", "source"),
    [
        (imports_torch, "def lazy() -> None:\n    import torch.nn\n"),
        (imports_torch, "from torch import nn\n"),
        (imports_torch, "import importlib\nnn = importlib.import_module('torch.nn')\n"),
        (imports_torch, "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import torch\n"),
        (starts_threads, "import threading\nthreading.Thread(target=print).start()\n"),
        (starts_threads, "from threading import Timer\nclass Late(Timer): pass\n"),
        (starts_threads, "async def late(loop) -> None:\n    await loop.run_in_executor(None, print)\n"),
        (starts_threads, "from threading import Thread as T\nT(target=print).start()\n"),
        (starts_threads, "import functools, threading\nmake = functools.partial(threading.Thread, target=print)\n"),
        (holds_credentials, "def lazy() -> None:\n    from jobs.model import settings\n"),
        (holds_credentials, "import redis.asyncio as redis\n"),
        (holds_credentials, "from jobs.support import secret_keys\n"),
        (forks, "import os\npid = os.fork()\n"),
        (forks, "from multiprocessing import Process\n"),
        (forks, "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()\n"),
        (forks, "import os as system\nsystem.fork()\n"),
        (forks, "import torch.multiprocessing as mp\nmp.spawn(print)\n"),
        (forks, "import subprocess\nsubprocess.run(['true'], preexec_fn=print)\n"),
    ],
)
def test_a_module_that_breaks_a_wall_is_found(does: Callable[[Path], bool], source: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert does(path)


def test_imports_for_type_checkers_break_no_wall(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n    import redis\n")
    assert not imports_torch(path)
    assert not holds_credentials(path)


def test_a_folder_has_at_most_twenty_modules() -> None:
    sizes: dict[Path, int] = {}
    for top in (*PACKAGES, "benchmarks", "tests", "tools"):
        for path in (path for kind in ("*.py", "*.lua") for path in (ROOT / top).rglob(kind)):
            # The module of a package counts where it is more than that.
            is_module = path.name != "__init__.py" or "\ndef " in path.read_text(encoding="utf-8")
            sizes[path.parent] = sizes.get(path.parent, 0) + is_module
    assert {str(folder.relative_to(ROOT)): size for folder, size in sizes.items() if size > MOST_MODULES} == {}
