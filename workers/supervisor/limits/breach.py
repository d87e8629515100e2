"""A limit that an attempt has exceeded, and the outcome that it has then."""

from dataclasses import dataclass
from typing import Literal

from jobs.model.state import StateReason
from shardyard.contract.report import describe_bytes
from workers.supervisor.ending.outcome import AttemptOutcome

LimitName = Literal["memory", "processes", "log", "disk", "files", "records"]

#: What was exceeded, as a sentence with the amounts that were used and are allowed.
_SENTENCES: dict[LimitName, str] = {
    "memory": "its processes took {used} of memory together, and may take {allowed}",
    "processes": "it had {used} processes and threads at one time, and may have {allowed}",
    "log": "it has printed more than the {allowed} that an attempt may print; the log ends there",
    "disk": "its files took {used} on disk, and may take {allowed}",
    "files": "it had {used} files and directories, and may have {allowed}",
    "records": "its metrics and records took {used} of the service, and may take {allowed}",
}
_OR_ASK = "or ask the operator for a larger {}"
_ADVICE: dict[LimitName, str] = {
    "memory": "Use smaller batches, fewer DataLoader workers, or data that is read as it is needed; "
    + _OR_ASK.format("SHARDYARD_JOB_MEMORY_BYTES"),
    "processes": "Start fewer processes and threads (num_workers of DataLoaders, pools, OMP_NUM_THREADS); "
    + _OR_ASK.format("SHARDYARD_RANK_PROCESSES"),
    "log": "Print less, for example every hundredth step, or write to a file in SHARDYARD_OUTPUT_DIR; "
    + _OR_ASK.format("SHARDYARD_JOB_LOG_BYTES"),
    "disk": "Keep fewer checkpoints and temporary files; " + _OR_ASK.format("SHARDYARD_JOB_DISK_BYTES"),
    "files": "Put many small files into one archive, and remove what is no longer needed; "
    + _OR_ASK.format("SHARDYARD_JOB_FILES"),
    "records": "Log metrics less often, for example every hundredth step; "
    + _OR_ASK.format("SHARDYARD_JOB_RECORD_BYTES"),
}
#: Limits whose numbers are no bytes.
_COUNTS = ("processes", "files")


@dataclass(frozen=True, slots=True)
class LimitBreach:
    """`used` and `allowed` are bytes or counts. `advice` and `sentence` where the usual ones do not fit."""

    limit: LimitName
    used: int
    allowed: int
    advice: str = ""
    sentence: str = ""

    @property
    def is_urgent(self) -> bool:
        """Whether the processes must end at once: whoever prints too much may end in its own way."""
        return self.limit != "log"

    @property
    def message(self) -> str:
        used, allowed = (describe_amount(self.limit, number) for number in (self.used, self.allowed))
        return self.sentence or _SENTENCES[self.limit].format(used=used, allowed=allowed)


def describe_amount(limit: LimitName, number: int) -> str:
    """Bytes or a count, in words."""
    return f"{number:,}" if limit in _COUNTS else describe_bytes(number)


def outcome_of_breach(breach: LimitBreach) -> AttemptOutcome:
    """How an attempt ends that has exceeded a limit."""
    error = {"rank": None, "exit_code": None, "signal": None, "message": breach.message, "traceback": None}
    numbers = {"limit": breach.limit, "used": breach.used, "allowed": breach.allowed}
    advice = breach.advice or _ADVICE[breach.limit]
    return AttemptOutcome(StateReason.RESOURCE_LIMIT, breach.message, error | numbers | {"advice": advice})
