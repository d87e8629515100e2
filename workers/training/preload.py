"""Imports everything that a rank needs, so that a forked rank finds it loaded.

The forkserver imports this module and then forks. It must therefore run no tensor operation and
start no thread: children of a process in which a multi-threaded operation ran can hang.
"""

import importlib
import weakref

from workers import packages
from workers.training import isolation

#: `torch._dynamo` takes a second, which the first optimizer or DDP constructor would spend otherwise.
MODULES = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.profiler._cupti_monitor",  # the first batch of a data loader would import it
    "torch.utils.data.distributed",
    "workers.training.entry",
    "workers.training.script",
)

for name in MODULES:
    importlib.import_module(name)

isolation.plain_path()  # found once, and known to all that is forked

# What the imports made is not a rank's to tear down: torch would take its operators out of its tables one by one at the
# end of every rank, which takes 30 ms.
for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
    finalizer.detach()

packages.remember()
