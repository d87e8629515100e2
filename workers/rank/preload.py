"""Imports everything that a rank needs, and rehearses its beginning, so that a forked rank finds it loaded.

The forkserver imports this module and then forks. It must therefore start no thread, run no tensor operation in several
threads, and ask for no GPU: children of a process that did can hang, or find no GPU.
"""

import atexit
import importlib
import weakref

from torch._dynamo import utils

from workers.runtime import import_hook, sys_path

#: `torch._dynamo` takes a second, which the first optimizer or DDP constructor would spend otherwise.
MODULES = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
    "workers.training.entry",
    "workers.rank.script",
)


def _prepare_small_recipe() -> None:
    """Prepare the smallest recipe, up to its first batch, as every rank does.

    What Python and torch set up at first use (caches of methods and operators, specialised bytecode) is then there
    before the fork, and a rank need not make it in copies of pages of its own: 3 ms of its start. On the CPU in one
    thread; backward and optimizer steps would ask for GPUs, and are left out.
    """
    from jobs.model.spec import JobSpec
    from workers.runtime.context import NullSink, RankContext, RankDevice
    from workers.training import entry

    program = {
        "kind": "recipe",
        "model": {"ref": "linear", "args": {"in_features": 2, "out_features": 2}},
        "data": {"ref": "random_vectors", "args": {"rows": 4, "features": 2}, "batch_size": 2},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
    }
    context = RankContext(0, 1, (RankDevice(0, "cpu", "cpu:0"),), lease_size=1, threads=1, sink=NullSink())
    run = entry.prepare_run(JobSpec.model_validate({"program": program}), context)
    next(iter(run.loader))


def _log_compile_times() -> None:
    """What torch does at the end of a process. To draw the table it looks for a package in every directory of the path,
    even for an empty one, which takes 2 ms."""
    if utils.compilation_time_metrics:
        utils.dump_compile_times()


for name in MODULES:
    importlib.import_module(name)

sys_path.plain_path()  # found once, and known to all that is forked
_prepare_small_recipe()

# What the imports made is not a rank's to tear down: torch would take its operators out of its tables one by one at the
# end of every rank, which takes 30 ms.
for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    finalizer.detach()

atexit.unregister(utils.dump_compile_times)
atexit.register(_log_compile_times)

import_hook.remember_modules()
