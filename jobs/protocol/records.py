"""Records that a rank sends to its supervisor, and their codec.

A rank holds no connection to Redis. It appends records to a buffer and writes them, packed, to one
pipe; the supervisor turns them into logs, metrics, progress and the split report. Records are
msgpack arrays (`msgspec`), each packet preceded by its length as four bytes, big endian.

Layouts only grow at the end: a new field goes last, with a default. An old reader then ignores it,
and a new reader fills it in.

Units: times are milliseconds (`_ms`), memory is bytes, `at` is seconds since the epoch (UTC).
Devices are logical: indexes into the lease.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

Shape = tuple[int, ...]

#: A packet larger than this is a corrupted pipe, not a batch of records.
MAX_PACKET_BYTES = 16 * 1024 * 1024
#: A rank gives its first splits an id each that later steps may name again. From this many on, an
#: id is named by the one step that follows it, so readers need not keep it.
MAX_INTERNED = 4_096
#: The train step whose floating-point operations (FLOP) each process counts, from 0 since it began: libraries have
#: warmed up, and it is not among those that are sampled for other measurements.
FLOP_STEP = 12
_LENGTH = struct.Struct(">I")


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
    memory_total_bytes: int | None = None


class Outline(Record, frozen=True):
    """How long the program means to run, as far as it knows. Sent once, before the first step."""

    epochs: int
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

    id: int
    phase: str  # train | eval | forward
    module: str  # dotted path of the wrapped sub-module, "" for the whole model
    batch_rows: int | None
    devices: tuple[int, ...]
    rows: tuple[int | None, ...]
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]
    holds_tokens: bool = False


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

    step: int
    epoch: int
    phase: str
    splits: tuple[int, ...]
    at: float
    step_ms: float
    data_wait_ms: float | None = None
    forward_ms: tuple[float | None, ...] = ()
    backward_ms: tuple[float | None, ...] = ()
    comm_ms: float | None = None
    primitives: PrimitiveTimes | None = None
    memory_peak_bytes: tuple[int | None, ...] = ()
    arrival_ms: tuple[float | None, ...] = ()
    optimizer_ms: float | None = None
    whole_backward_ms: float | None = None
    cycle_ms: float | None = None
    flop: dict[str, tuple[int, ...]] | None = None


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
    metrics: dict[str, float]


class Outcome(Record, frozen=True):
    """The last record of a rank: everything up to here has happened. `exit_code` 0 means success."""

    rank: int
    exit_code: int
    kind: str = ""  # "" | code_error | out_of_memory | rejected_by_worker
    message: str = ""
    traceback: str = ""
    advice: str = ""  # what the user may do about it, where that is known
    at: float = 0.0  # when the program ended; 0: not known


# -- what a probe sees in a program that it did not write ------------------------------------------


class Began(Record, frozen=True):
    """The first forward of a step has begun: a rank that never returns from it can then be named."""

    step: int
    phase: str
    at: float


class Joining(Record, frozen=True):
    """The process has called `init_process_group`, which returns when all ranks have."""

    at: float


class Group(Record, frozen=True):
    """The process has joined a process group (the default one), whatever its environment says."""

    rank: int
    world_size: int
    backend: str


class Wrapped(Record, frozen=True):
    """A module was wrapped. `kind` is the wrapper's class, as torch calls it; `inside` that of the module."""

    kind: str  # DataParallel | DistributedDataParallel | FullyShardedDataParallel | fully_shard | parallelize_module
    inside: str
    devices: tuple[int, ...] = ()
    gradient_bytes: int | None = None  # of its parameters, where the wrapper reduces them


class LoaderOpened(Record, frozen=True):
    """The first pass over a DataLoader begins. `loader` is its number, as in `Loaded`."""

    loader: int
    num_workers: int


class Loaded(Record, frozen=True):
    """One pass over a DataLoader has ended, or was left.

    `digest` is a number made of the indices that the sampler gave, whatever their order: two ranks
    with the same digest and rows went over the same rows. It is `None` where there are no indices.
    `replicas` and `replica` are a DistributedSampler's, or what sharded the loader in its place.
    """

    loader: int
    number: int  # of the pass over this loader, from 0
    batches: int
    rows: int | None
    dataset_rows: int | None
    batch_size: int | None
    sampler: str
    replicas: int | None
    replica: int | None
    digest: int | None
    complete: bool
    trained: bool  # optimizer steps took place meanwhile
    contents: tuple[tuple[int, ...], ...] = ()  # of its first rows: the index, and checksums of what the row holds
    shuffles: bool | None = None  # what a DistributedSampler of torch was told
    sampler_number: int | None = None  # of that sampler within the process: passes may be over the same one
    forwards: int = 0  # of models, meanwhile
    began_at: float = 0.0  # seconds since the epoch; 0: not known
    seconds: float = 0.0  # until its last batch was asked for in vain; 0 where it was left early
    first_batches: tuple[int, ...] = ()  # checksums of those of an iterable data set


class Activity(Record, frozen=True):
    """What a process did in all, counted by its probe up to now. The latest counts."""

    forwards: int
    backwards: int
    steps: int
    reductions: int  # collectives that add up or average tensors, called by the program itself once it trains
    exchanges: int = 0  # other collectives, and messages, by which tensors travel between its processes
    gathers: int = 0  # collectives that bring tensors of all ranks together, called during an evaluation or after it
    evaluation_sums: int = 0  # those that add up tensors of any size, called there


class Noise(Record, frozen=True):
    """From what state of the random generator the first training forward of a process begins, as a checksum, and
    whether its model drops units at random."""

    state: int
    drops_out: bool


class LossWeight(msgspec.Struct, frozen=True, array_like=True):
    """One backward: the rows before it, the elements of its target that count, and what each weighs in the loss."""

    rows: int | None
    elements: float
    weight: float


class LossWeights(Record, frozen=True):
    """The first backwards of a process."""

    backwards: tuple[LossWeight, ...]


class GradientSync(Record, frozen=True):
    """How the gradients of one DistributedDataParallel were synchronised up to now; `number` tells those of a process
    apart, and the latest record of each counts.

    `unsynchronised` are the steps of an optimizer before which the last backward did not reduce gradients. `repeated`
    are those with several backwards that did, `reductions` of them in all, while gradients were only added up in
    between. `exchanged` are the numbers that the program itself has exchanged with other processes while it trained.
    """

    number: int
    inside: str  # class of the module
    unsynchronised: int
    first_unsynchronised: int | None  # the step
    repeated: int
    reductions: int
    gradient_bytes: int  # of one reduction
    trained_numbers: int  # in all parameters that are trained
    exchanged: int


class LossForm(Record, frozen=True):
    """How the loss of a batch of so many rows is made of them: `kind` is what is done with the rows (mean, sum, none or
    unknown), `factors` what the loss is multiplied with. `gathered` is the number of devices whose losses are averaged
    or added up, 0 where there is one loss."""

    rows: int
    kind: str
    factors: tuple[float, ...]
    gathered: int


class NormLayers(Record, frozen=True):
    """A model has so many BatchNorm layers that take their statistics from each device alone. `values_per_row` are the
    values of each row, in a channel, of the layer that has the fewest; `None` where that is not known."""

    module: str  # dotted path of the wrapped sub-module, "" for the whole model
    inside: str  # class of the module
    layers: int
    values_per_row: int | None = None


class ParameterSearch(Record, frozen=True):
    """A DistributedDataParallel searches for unused parameters. In `looks` of its `reductions` every parameter had a
    gradient; `needed` says that in some one had none."""

    number: int
    inside: str  # class of the module
    looks: int
    reductions: int
    needed: bool


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
    shapes: tuple[Shape, ...] = ()  # of the first tensors that it took


class GroupCalls(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has called of one process group: the newest call, and the first one that has not ended."""

    group: str
    ranks: tuple[int, ...]  # of the group; empty where they are not known
    newest: CollectiveCall
    pending: CollectiveCall | None = None


class CallsMade(Record, frozen=True):
    """The collectives that the rank has called so far: the answer to `request`, or (0) sent because it fails."""

    request: int
    groups: tuple[GroupCalls, ...]


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
    files: tuple[SavedFile, ...]
    error: str = ""


# -- profiles --------------------------------------------------------------------------------------


class ProfileBegin(Record, frozen=True):
    """The rank has ended a step, and records from now on for profile `number`."""

    number: int


class ProfilePart(Record, frozen=True):
    """The next bytes of the compressed trace of profile `number`, in their order."""

    number: int
    data: bytes


class ProfileEnd(Record, frozen=True):
    """The rank has sent its whole trace of profile `number`, of so many steps, or has none, as `error` says."""

    number: int
    steps: int
    seconds: float
    error: str = ""


#: Every record but the two that come in masses.
SingleRecord = (
    RankUp
    | ProgramBegan
    | DeviceInfo
    | Outline
    | BatchSplit
    | Note
    | Result
    | Outcome
    | Began
    | Joining
    | Group
    | Wrapped
    | LoaderOpened
    | Loaded
    | Activity
    | Noise
    | LossWeights
    | GradientSync
    | LossForm
    | NormLayers
    | ParameterSearch
    | ProgramProgress
    | CallsMade
    | Hello
    | Returned
    | Paused
    | Saved
    | ProfileBegin
    | ProfilePart
    | ProfileEnd
)
AnyRecord = Step | MetricSample | SingleRecord

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[AnyRecord, ...])


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Steps and metrics that one process sent without another record in between, each kind in its order."""

    steps: list[Step] = field(default_factory=list)
    metrics: list[MetricSample] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.steps or self.metrics)


def batch_steps(packet: Sequence[AnyRecord]) -> Iterator[StepBatch | SingleRecord]:
    """The records of one packet in their order, with neighbouring steps and metrics in one batch."""
    batch = StepBatch()
    for record in packet:
        if isinstance(record, Step):
            batch.steps.append(record)
        elif isinstance(record, MetricSample):
            batch.metrics.append(record)
        else:
            if batch:
                yield batch
                batch = StepBatch()
            yield record
    if batch:
        yield batch


def encode_packet(records: Sequence[AnyRecord]) -> bytes:
    """Encode records as one packet, length first."""
    body = _encoder.encode(records)
    return _LENGTH.pack(len(body)) + body


class PacketDecoder:
    """Decodes the packets of a pipe, whose bytes may come in pieces of any size."""

    def __init__(self, limit: int = MAX_PACKET_BYTES) -> None:
        self._limit = limit  # of one packet
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[AnyRecord, ...]]:
        """Yield the packets that `data` completes.

        Raises:
            ValueError: the stream does not consist of packets (an impossible length, or bytes that do not decode).
        """
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > self._limit:
                raise ValueError(f"a packet of {length} bytes is over the limit of {self._limit}")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            try:
                packet = _decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise ValueError(f"a packet does not decode: {error}") from error
            yield packet
