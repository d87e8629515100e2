"""Imports everything that a rank needs, so that a forked rank finds it loaded.

The forkserver imports this module and then forks. It must therefore run no tensor operation and
start no thread: children of a process in which a multi-threaded operation ran can hang.
"""

import numpy  # noqa: F401
import torch._dynamo  # noqa: F401 - a second of imports that the first optimizer would trigger
import torch.distributed  # noqa: F401
import torch.nn.parallel  # noqa: F401
import torch.utils.data.distributed  # noqa: F401

import workers.training.entry  # noqa: F401
