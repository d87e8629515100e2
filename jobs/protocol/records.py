"""Records that a rank sends to its supervisor; `jobs.protocol.packets` is their codec. What a probe sees in a program
that it did not write is in `jobs.protocol.probe_records`.

A rank holds no connection to Redis. It appends records to a buffer and writes them, packed, to one
pipe; the supervisor turns them into logs, metrics, progress and the split report.

Layouts only grow at the end: a new field goes last, with a default. An old reader then ignores it,
and a new reader fills it in.

What a rank sends is not trusted. A record that holds more than the bounds below does not decode, as no rank of ours
sends one; texts are cut by those who keep them (`workers.supervisor.limits.record_bounds`).

Units: times are milliseconds (`_ms`), memory is bytes, `at` is seconds since the epoch (UTC).
Devices are logical: indexes into the lease.
"""

from typing import Annotated

import msgspec

#: Bounds of one record. What a process of ours counts stays below what JSON and floats hold exactly; what programs say
#: of themselves may be any number.
MAX_COUNT = 2**53
MAX_ENTRIES = 4_096
MAX_DIMENSIONS = 64
MAX_LONG_LIST = 65_536
MAX_PART_BYTES = 512 * 1024

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_AT_MOST = msgspec.Meta(max_length=MAX_ENTRIES)
Numbers = Annotated[tuple[int, ...], _AT_MOST]
Times = Annotated[tuple[float | None, ...], _AT_MOST]
Shape = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
Shapes = Annotated[tuple[Shape | None, ...], _AT_MOST]

#: A rank gives its first splits an id each that later steps may name again. From this many on, an
#: id is named by the one step that follows it, so readers need not keep it.
MAX_INTERNED = 4_096
#: The train step whose floating-point operations (FLOP) each process counts, from 0 since it began: libraries have
#: warmed up, and it is not among those that are sampled for other measurements.
FLOP_STEP = 12


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all records: the first element on the wire is the class's name."""


class RankUp(Record, frozen=True):
    """The rank has been told to go and is about to run the program."""

    rank: int


class ProgramBegan(Record, frozen=True):
    """The rank runs the program from here on."""

    at: float


class DeviceInfo(Record, frozen=True):
    """What the rank found one of its devices to be (nothing touches a device before)."""

    device: int
    name: str
    memory_total_bytes: Count | None = None


class Outline(Record, frozen=True):
    """How long the program means to run, as far as it knows. Sent once, before the first step."""

    epochs: Count
    steps_per_epoch: int | None
    total_steps: int | None
    batch_size: int
    dataset_rows: int | None
    gradient_bytes: int | None = None  # that each rank contributes to a reduction, under ddp


class BatchSplit(Record, frozen=True, tag="Split"):
    """One way in which a batch was divided; steps refer to it by `id` (counted from 0 within a rank).

    `devices` are the logical devices of this rank (all of the lease under dp, its own under ddp);
    `rows`, `input_shapes` and `output_shapes` run parallel to it. A device that got nothing has 0
    rows and `None` for its shapes. `rows[i]` is `None` when the rows of a shard cannot be counted. `holds_tokens` says
    that the inputs are token ids, so that each element of an input shape is one.
    """

    id: Count
    phase: str  # train | eval | forward
    module: str  # dotted path of the wrapped sub-module, "" for the whole model
    batch_rows: int | None
    devices: Numbers
    rows: Annotated[tuple[int | None, ...], _AT_MOST]
    input_shapes: Shapes
    output_shapes: Shapes
    holds_tokens: bool = False


class RowWeights(Record, frozen=True):
    """The weights of all devices, by which rows are divided. `row_ms` says how long a row takes on each device, where
    that was measured before the first step. Rank 0 sends it."""

    weights: Annotated[tuple[float, ...], _AT_MOST]
    source: str  # spec | measured | checkpoint
    row_ms: Annotated[tuple[float, ...], _AT_MOST] = ()


class GradientProof(Record, frozen=True):
    """The gradient of a step on all ranks together, held against that of one device on the whole batch: its norm, and
    the norm of the difference. Rank 0 sends it, once."""

    step: Count
    rows: Count
    norm: float
    difference: float


class PrimitiveTimes(msgspec.Struct, frozen=True, array_like=True):
    """Time of DataParallel's four primitives in one step."""

    replicate_ms: float
    scatter_ms: float
    parallel_apply_ms: float
    gather_ms: float


class Step(Record, frozen=True, gc=False):
    """One optimizer step (phase train), or one batch (phases eval and forward).

    `step` counts from 0 within its phase, over all epochs. `splits` has one id per forward of the
    step, so gradient accumulation sends several. `forward_ms`, `backward_ms` and `arrival_ms` (dp: how
    long a device waited for its own shard once the batch was there) run parallel to the devices of the
    split; an entry that was not measured is `None`, and a `Note` says why.

    `data_wait_ms`, `forward_ms`, `backward_ms`, `comm_ms` and `optimizer_ms` are disjoint parts of `cycle_ms`, the time
    since the process's previous step ended, of whatever phase. `whole_backward_ms` is the time of the calls of backward
    where these do more than compute on one device: under ddp it is `backward_ms` and `comm_ms` together, under dp the
    backward of all devices. It is measured in every step, and its parts in some.

    `flop` is there in the one step whose floating-point operations were counted: by precision, those of each device.
    That takes time, so such a step has no times beside `step_ms` and `data_wait_ms`.
    """

    step: Count
    epoch: Count
    phase: str
    splits: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_LONG_LIST)]
    at: float
    step_ms: float
    data_wait_ms: float | None = None
    forward_ms: Times = ()
    backward_ms: Times = ()
    comm_ms: float | None = None
    primitives: PrimitiveTimes | None = None
    memory_peak_bytes: Annotated[tuple[Count | None, ...], _AT_MOST] = ()
    arrival_ms: Times = ()
    optimizer_ms: float | None = None
    whole_backward_ms: float | None = None
    cycle_ms: float | None = None
    flop: Annotated[dict[str, Numbers], msgspec.Meta(max_length=64)] | None = None


class MetricSample(Record, frozen=True, tag="Metric", gc=False):
    """One point of a series. `device` is the logical device, or -1 for the job as a whole."""

    device: int
    name: str
    step: int
    value: float
    at: float


class Note(Record, frozen=True):
    """Why a field of the report is `null`, or what a reader must know about it."""

    field: str  # the report's own path, for example "per_device.memory_peak_bytes"
    reason: str


class Result(Record, frozen=True):
    """The program's final numbers (rank 0 sends one)."""

    loss: float | None
    metrics: Annotated[dict[str, float], _AT_MOST]


class Outcome(Record, frozen=True):
    """The last record of a rank: everything up to here has happened. `exit_code` 0 means success."""

    rank: int
    exit_code: int
    kind: str = ""  # "" | code_error | out_of_memory | rejected_by_worker
    message: str = ""
    traceback: str = ""
    advice: str = ""  # what the user may do about it, where that is known
    at: float = 0.0  # when the program ended; 0: not known


# -- what a program is doing ----------------------------------------------------------------------


class Began(Record, frozen=True):
    """The first forward of a step has begun: a rank that never returns from it can then be named."""

    step: Count
    phase: str
    at: float


class ProgramProgress(Record, frozen=True, tag="Progress"):
    """How far a program is in its own count: what it said itself, or what its progress bar or its DataLoader shows.

    `step` of `steps` are done; `steps` is `None` where the end is not known.
    """

    step: int
    steps: int | None
    unit: str = "step"
    source: str = "job"  # job | tqdm | loader


class CollectiveCall(msgspec.Struct, frozen=True, array_like=True):
    """A collective that a rank has called. `number` counts those of its process group, as torch does."""

    number: int
    name: str
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(max_length=64)] = ()  # of the first tensors that it took


class GroupCalls(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has called of one process group: the newest call, and the first one that has not ended."""

    group: str
    ranks: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_LONG_LIST)]  # of the group; empty: not known
    newest: CollectiveCall
    pending: CollectiveCall | None = None


class CallsMade(Record, frozen=True):
    """The collectives that the rank has called so far: the answer to `request`, or (0) sent because it fails."""

    request: int
    groups: Annotated[tuple[GroupCalls, ...], msgspec.Meta(max_length=64)]


class Hello(Record, frozen=True):
    """The first record of a process that descends from a rank and has work to tell of.

    `rank` is the rank that it descends from; `role` says how it came to be.
    """

    pid: int
    ppid: int
    role: str  # forked | started (a new program: spawned by multiprocessing, or a sub-process)
    rank: int = 0


class Returned(Record, frozen=True):
    """A rank's program has ended, as `outcome` says; its threads, and then its exit handlers, are left to run."""

    outcome: Outcome
    stage: str  # threads | handlers
    at: float = 0.0  # 0: not known


# -- checkpoints -----------------------------------------------------------------------------------


class SavedFile(msgspec.Struct, frozen=True, array_like=True):
    """One file that a rank has written and synced; `name` is plain, `sha256` in hex."""

    name: str
    bytes: int
    sha256: str


class Paused(Record, frozen=True):
    """The rank was told to stop and has done `step` steps. It waits for the supervisor's word: the ranks of a group
    must save the same step, and some may be one ahead."""

    rank: int
    step: int


class Saved(Record, frozen=True):
    """The rank has written its part of a checkpoint of `step` steps, or could not, as `error` says. It waits for the
    supervisor's word: what it sent before this is in the checkpoint, and nothing that it sends later."""

    rank: int
    step: int
    epoch: int
    files: Annotated[tuple[SavedFile, ...], _AT_MOST]
    error: str = ""


# -- profiles --------------------------------------------------------------------------------------


class ProfileBegin(Record, frozen=True):
    """The rank has ended a step, and records from now on for profile `number`."""

    number: int


class ProfilePart(Record, frozen=True):
    """The next bytes of the compressed trace of profile `number`, in their order."""

    number: int
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_PART_BYTES)]


class ProfileEnd(Record, frozen=True):
    """The rank has sent its whole trace of profile `number`, of so many steps, or has none, as `error` says."""

    number: int
    steps: int
    seconds: float
    error: str = ""
