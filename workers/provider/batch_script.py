"""What sbatch is given for a block: its arguments, and the script whose body is `srun shardyard worker ...`.

Only flags that old and new versions of Slurm share. Arguments count before the `#SBATCH` lines of a site's template.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers.provider.pools_file import SlurmPool

#: Of the provider's own environment: a worker of a block takes these from its allocation, or from its command line.
_NOT_PASSED_ON = frozenset(
    f"SHARDYARD_{name}"
    for name in ("NODE", "NODE_ADDRESS", "BLOCK", "POOL", "DEVICES", "NODES", "VIRTUAL_NODE", "HOST")
)
_SHEBANG = "#!/bin/bash"

#: One task a node, which sees all GPUs of it: with one a GPU, NCCL would find no way between them. A block ends when
#: the last of its nodes has left, not the first. SIGUSR2 alone may be passed on: srun ends a step at once for SIGTERM.
_BODY = """
# A block of pool {pool}, by `shardyard provider`.
trap 'kill -USR2 "$step" 2>/dev/null' USR2 TERM
{srun} \\
  {worker} &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
"""


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """A block to ask for. `gres` is what each node must have, "" for no GPUs; `kept`: its nodes stay while idle."""

    pool: str
    name: str
    nodes: int
    gres: str = ""
    kept: bool = False


def sbatch_arguments(request: BlockRequest, pool: SlurmPool, checkpoint_seconds: float) -> list[str]:
    found = [
        "sbatch",
        "--parsable",
        f"--job-name={request.name}",
        f"--partition={pool.partition}",
        f"--nodes={request.nodes}",
        "--ntasks-per-node=1",
        f"--time={pool.time_limit}",
        f"--signal=B:USR2@{pool.grace(checkpoint_seconds)}",
        "--no-requeue",
        "--open-mode=append",
        "--export=ALL",
        f"--output={pool.output}",
    ]
    found += [f"--gres={request.gres}"] if request.gres else []
    found += [f"--cpus-per-task={pool.cpus}"] if pool.cpus else []
    return found


def batch_script(request: BlockRequest, pool: SlurmPool, checkpoint_seconds: float, template: str = "") -> str:
    """The script on sbatch's standard input. `template` comes first, with a shebang of its own or without."""
    head = template.strip("\n")
    if not head.startswith("#!"):
        head = f"{_SHEBANG}\n{head}".rstrip("\n")
    srun = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--wait=0"]
    srun += [f"--cpus-per-task={pool.cpus}"] if pool.cpus else []  # which srun does not take from sbatch any more
    worker = [pool.command or default_command(), "worker", "--pool", request.pool]
    worker += ["--devices", pool.devices if pool.devices.startswith("cpu:") else "auto"]
    worker += [] if request.kept else ["--idle-exit", f"{pool.idle_seconds:g}"]
    worker += ["--lifetime", str(pool.time_limit_seconds - pool.grace(checkpoint_seconds))]
    line = f'{shlex.join(worker)} --block "$SLURM_JOB_ID"'
    return head + "\n" + _BODY.format(pool=request.pool, srun=shlex.join(srun), worker=line)


def default_command() -> str:
    """The program that this installation has beside its Python."""
    return str(Path(sys.executable).with_name("shardyard"))


def batch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What sbatch passes on to the block: the settings of the service as this process has them."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_PASSED_ON and not name.startswith(("SLURM_JOB", "SLURM_STEP", "SLURM_TASK", "SLURMD_"))
    }
