"""The functions that a training script calls: `from shardyard import job`.

job.log("loss", loss, step)             # a number of a series: a float, or a tensor of one element
job.progress(step, steps)               # how far the script is
path = job.output_dir() / "model.pt"    # files here are stored: `shardyard artifacts JOB`
job.checkpoint(path)                    # stores a copy of a file or directory under checkpoints/
job.resume_dir()                        # the newest checkpoint when the job was started again, else None
if job.should_stop(): ...               # the job must end: save, and exit
job.weights()                           # of each device, as the job's parallelism.weights has them

`shardyard.job` is a decorator as well, for functions that run as jobs: `@shardyard.job(devices=2, strategy="ddp")`.
"""

import sys
from types import ModuleType
from typing import Any

from shardyard.script.job import checkpoint, log, output_dir, progress, resume_dir, should_stop, weights

__all__ = ["checkpoint", "log", "output_dir", "progress", "resume_dir", "should_stop", "weights"]


class _CallableModule(ModuleType):
    """This module, which can be called."""

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        from shardyard.functions.job_api import make_job_function

        return make_job_function(function, **options)


sys.modules[__name__].__class__ = _CallableModule
