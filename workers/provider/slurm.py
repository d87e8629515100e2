"""Slurm's commands, as a provider needs them. Accounting may be off."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from workers.runtime.process_control import ask_for_death_signal

COMMAND_SECONDS = 60.0
MAX_WORDS = 300
MAX_OUTPUT_BYTES = 8 << 20
#: Id, state, nodes, the reason of a wait or an end, and last the name, of a job.
_FORMAT = "%i|%T|%D|%r|%j"
#: States of a job of which nothing runs any more. What is completing still has processes, perhaps.
_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
    }
)
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "CONFIGURING"})
#: Messages after which it is not known whether Slurm has done what it was asked.
_UNCLEAR = re.compile(r"timed? ?out|unable to contact|connection|communication|zero bytes", re.IGNORECASE)
_GPUS = re.compile(r"gpu:(?:[^:,()]+:)?(\d+)")


class EngineError(Exception):
    """A command failed. `unclear`: what it was to do may have happened all the same."""

    def __init__(self, message: str, *, unclear: bool = False) -> None:
        super().__init__(message)
        self.unclear = unclear


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A job as squeue shows it. `why` is its reason."""

    id: str
    name: str
    state: str
    nodes: int
    why: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_pending(self) -> bool:
        return self.state in _WAITING


@dataclass(frozen=True, slots=True)
class Slurm:
    """`environment` is what commands run with."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def submit(self, arguments: Sequence[str], script: str) -> str:
        """The id of a new job. Raises EngineError."""
        answer = self._run(arguments, script).strip()
        job = answer.splitlines()[-1].partition(";")[0] if answer else ""
        if not job.isdecimal():
            raise EngineError(f"sbatch answered {answer[:MAX_WORDS]!r}, which is not the id of a job", unclear=True)
        return job

    def list_jobs(self, prefix: str) -> tuple[EngineJob, ...]:
        """All jobs of this user whose names begin so, with those that ended lately. Raises EngineError."""
        lines = self._run(["squeue", "-h", "-a", "-t", "all", "-u", str(os.geteuid()), "-o", _FORMAT]).splitlines()
        jobs = (_read_job(line) for line in lines)
        return tuple(job for job in jobs if job is not None and job.name.startswith(prefix))

    def cancel_pending(self, jobs: Sequence[str]) -> None:
        """Cancel jobs, unless they have begun. Raises EngineError."""
        self._run(["scancel", "--state=PENDING", *jobs])

    def count_gpus(self, partition: str) -> int:
        """GPUs that every node of a partition has that has any; 0 where none has.

        Raises:
            EngineError: there is no such partition, or Slurm does not answer.
        """
        lines = self._run(["sinfo", "-h", "-p", partition, "-o", "%G"]).splitlines()
        if not lines:
            raise EngineError(f"Slurm has no partition {partition!r}")
        counts = [sum(int(count) for count in _GPUS.findall(line)) for line in lines]
        return min((count for count in counts if count), default=0)

    def _run(self, command: Sequence[str], text: str = "") -> str:
        """What a command prints. It ends with this process, so that none of an earlier one submits beside us."""
        try:
            done = subprocess.run(
                command,
                input=text.encode(),
                capture_output=True,
                timeout=COMMAND_SECONDS,
                check=False,
                env=dict(self.environment),
                preexec_fn=partial(ask_for_death_signal, signal.SIGKILL),  # this process has one thread
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{command[0]} did not answer within {COMMAND_SECONDS:g} s", unclear=True) from None
        except OSError as error:
            raise EngineError(f"{command[0]}: {error.strerror}; is Slurm installed here?") from error
        if done.returncode:
            words = " ".join(done.stderr.decode(errors="replace").split())[-MAX_WORDS:]
            message = words or f"{command[0]} ended with exit code {done.returncode}"
            raise EngineError(message, unclear=bool(_UNCLEAR.search(message)))
        return done.stdout[:MAX_OUTPUT_BYTES].decode(errors="replace")


def _read_job(line: str) -> EngineJob | None:
    parts = line.split("|", 4)
    if len(parts) < 5 or not parts[2].isdecimal():
        return None
    job, state, nodes, why, name = parts
    return EngineJob(job, name, state, int(nodes), "" if why == "None" else why[:MAX_WORDS])
