"""An attempt's configuration, its directory, and the message that starts its ranks. Credentials come by a pipe."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobs.model.parts import devices_of_part, ranks_of_part
from jobs.model.records import DeviceRecord
from jobs.model.spec import DISTRIBUTED, JobSpec
from jobs.protocol import names
from jobs.storage.target import StorageTarget
from jobs.store import AttemptId
from jobs.support import fs
from workers.runtime.limits import AttemptLimits

#: Where ranks that share the host's network meet, in a directory of their box.
PRIVATE_STORE = "/tmp/rendezvous/store"  # noqa: S108


@dataclass(frozen=True, slots=True)
class RankAccount:
    """The account of an attempt's ranks. `groups` are those without which devices cannot be opened. `is_own`: no other
    attempt has it at the same time."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    processes: int = 4096  # that it may have at most
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """One attempt to be run on this node. `devices` is the lease of this node's part, in logical order."""

    attempt: AttemptId
    spec: JobSpec
    node: str
    address: str  # the rendezvous listens here
    devices: tuple[DeviceRecord, ...]
    threads: int  # per rank
    state_dir: Path  # node-local: locks
    storage: Path
    lease_seconds: float
    beat_seconds: float
    grace_seconds: float
    checkpoint_seconds: float = 30.0  # that ranks have to save before they are stopped
    data_root: Path | None = None  # jobs may read files below it
    python: Path | None = None  # ranks start cold, in this Python
    account: RankAccount | None = None  # of the ranks; None: the worker's own
    max_artifact_bytes: int = 2**31  # of what the job leaves in its working directory
    limits: AttemptLimits | None = None  # None: none are enforced
    network: str = "none"  # none: a loopback of its own | host: the node's
    reserve_bytes: int = 0  # that the service keeps free on the attempt's disks
    boxed: bool = False  # whether its ranks are in a box; their supervisor knows
    part: int = 0  # of this node in the attempt; 0 leads
    parts: tuple[str, ...] = ()  # nodes of the attempt in the order of its parts, where it has several
    join_seconds: float = 30.0  # within which all parts must have joined the leader
    traceparent: str = ""  # the trace that its job belongs to, for its ranks; "": none
    target: StorageTarget | None = None  # to which `storage` is carried; None: all nodes mount it
    carry_bytes: int = 2**53  # that may wait on this node to be carried
    temporary: bool = False  # its node is of a block: an engine's SIGTERM asks for the end of the attempt

    @property
    def strategy(self) -> str:
        return self.spec.parallelism.strategy

    @property
    def is_distributed(self) -> bool:
        return self.strategy in DISTRIBUTED

    @property
    def world_size(self) -> int:
        """One rank per device of each node under ddp and fsdp, one for all devices otherwise."""
        return len(self.devices) * max(1, len(self.parts)) if self.is_distributed else 1

    @property
    def is_gang(self) -> bool:
        """Whether the attempt has ranks on other nodes, too."""
        return len(self.parts) > 1

    @property
    def ranks(self) -> range:
        """Numbers of the ranks that run on this node."""
        return ranks_of_part(self.part, len(self.devices), self.strategy)

    @property
    def first_device(self) -> int:
        """The logical index of this node's first device."""
        return devices_of_part(self.part, len(self.devices)).start

    def devices_of(self, rank: int) -> tuple[tuple[int, DeviceRecord], ...]:
        """(logical index, device) of each device that `rank`, which runs on this node, drives."""
        if self.is_distributed:
            return ((rank, self.devices[rank - self.first_device]),)
        return tuple(enumerate(self.devices))


class AttemptDirectory:
    """Where the traces of an attempt's processes are kept, so that any later process can find them all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Record-locked by the supervisor alone (such locks are not inherited): free means it is dead.
        self.supervisor_lock = directory / "supervisor.lock"
        #: flocked, and inherited by every forked descendant: it can be taken only when all are dead.
        self.ranks_lock = directory / "ranks.lock"
        self.session = directory / "session"  # holds "<session id> <start time of its leader>"
        self.cgroup = directory / "cgroup"  # holds the path of the attempt's cgroup, where one could be made
        #: Holds "<process id of the box's first process> <its start time> <uid of the ranks, or -1>".
        self.box = directory / "box"
        self.account = directory / "account"  # holds the uid of ranks without a box, where no other attempt has it
        self.log = directory / "supervisor.log"
        self.pending_end = directory / "untold.json"  # how the attempt ended, where its supervisor could not report it
        self.work = directory / "work"  # the working copy of the job's bundle
        self.baseline = directory / "baseline.json"  # what was in the working copy before the program started
        self.resume = directory / "resume"  # a copy of the checkpoint that a script resumes from
        self.fetched = directory / "fetched"  # what earlier attempts have saved, from a storage that is not mounted
        self.temporary = directory / "temporary"  # holds the path of the directory for temporary files, elsewhere
        self.disk_ledger = directory / "disks.json"  # what it has on its disks, and whether it must end for that

    @classmethod
    def of(cls, state_dir: Path, attempt: AttemptId) -> "AttemptDirectory":
        return cls(state_dir / "attempts" / f"{attempt.tenant}.{attempt.job}.{attempt.number}")

    @property
    def sampled_ranks(self) -> Path:
        """Which process drives which devices, for the node's samples of its hardware."""
        return self.directory / "ranks.json"

    @property
    def hardware(self) -> Path:
        """Samples of its hardware. Elsewhere, since the node writes it while the supervisor removes this directory."""
        return self.directory.parent.parent / "hardware" / f"{self.directory.name}.msgpack"

    def create(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def remove(self) -> None:
        """Remove the traces, and all directories that the attempt's processes had for themselves."""
        with contextlib.suppress(OSError):
            if temporary := self.temporary.read_text():  # empty where its writer was killed
                fs.remove_tree(Path(temporary))
        with contextlib.suppress(OSError):
            fs.remove_tree(self.directory)


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    root: Path  # of the bundle's working copy
    temporary: Path
    output: Path  # kept as the attempt's artifacts
    requirements: bool  # whether the bundle names packages that it needs
    resume: Path | None = None  # a checkpoint that a script resumes from
    resumed_attempt: int = 0  # that has saved it

    def encode(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    @property
    def socket(self) -> Path:
        """Where processes that the program starts report to the supervisor."""
        return self.temporary / ".shardyard"

    @classmethod
    def decode(cls, found: dict[str, Any]) -> "WorkingDirectory":
        paths = {name: Path(found[name]) for name in ("root", "temporary", "output", "resume") if found[name]}
        return cls(**found | paths)


@dataclass(frozen=True, slots=True)
class StartMessage:
    working_directory: WorkingDirectory | None  # where the job brings code of its own
    drafts: Path | None = None  # where it saves its part of checkpoints, if the job asks for them
    resume: Path | None = None  # a checkpoint to begin with
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values of environment variables
    #: Variables by which the ranks of several nodes find each other, which are known once all nodes have joined.
    rendezvous: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        directory = self.working_directory.encode() if self.working_directory is not None else None
        paths = {name: str(path) for name, path in (("drafts", self.drafts), ("resume", self.resume)) if path}
        variables = {"secrets": dict(self.secrets), "rendezvous": dict(self.rendezvous)}
        return json.dumps({"working_directory": directory, "paths": paths} | variables).encode()

    @classmethod
    def decode(cls, body: bytes) -> "StartMessage":
        found = json.loads(body)
        directory = found["working_directory"]
        paths = {name: Path(path) for name, path in found["paths"].items()}
        start = WorkingDirectory.decode(directory) if directory is not None else None
        return cls(start, **paths, secrets=found["secrets"], rendezvous=found["rendezvous"])


def attempt_variable(attempt: AttemptId) -> tuple[str, str]:
    """The variable that marks exec'd descendants."""
    return names.ATTEMPT_MARK, str(attempt)
