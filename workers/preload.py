"""What the forkserver imports before it serves: everything that a supervisor and a rank need.

It starts no thread. The frozen heap spares every child the copying of pages that a garbage collection would touch.
"""

import gc

import torch._dynamo  # noqa: F401  (the first optimizer or DDP constructor imports it otherwise, which takes a second)

import jobs.lean_log  # noqa: F401
import workers.supervisor
import workers.training.preload
from jobs import store

for script in workers.supervisor.SCRIPTS:
    store.source(script)  # read once, and known to all that is forked

gc.collect()
gc.freeze()
