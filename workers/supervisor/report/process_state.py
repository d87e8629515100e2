"""The state of each process of an attempt: how it divided its batches, and what it did in all.

A recipe has one process for each rank. A script's rank may have descendants that train in its place, by
`multiprocessing` or by starting the script again; each is a process with a `source` number of its own, and its
steps count for the rank that it has in its process group.
"""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from jobs.protocol.probe_records import Activity, Group, Loaded, LoaderOpened, LossWeights, Noise, Wrapped
from jobs.protocol.records import MAX_INTERNED, BatchSplit, Began, Outcome, Shape, Step
from workers.supervisor.report.gradient_observations import GradientObservations
from workers.supervisor.report.lru_cache import MAX_CACHED, LruCache

#: Splits from `MAX_INTERNED` on are sent anew for every step, so only the latest are kept.
MAX_PASSING_SPLITS = 64
#: Passes over a DataLoader that are kept, the latest ones.
MAX_PASSES = 64
#: DataLoaders whose rows are compared with those of other ranks.
MAX_COMPARED = 16
#: Evaluations, and long pauses between steps, that are kept of each process, the latest ones.
MAX_EVALUATIONS = 256
#: A pause is long from here on.
LONG_PAUSE_MS = 10_000.0
#: Wrapped modules that are remembered.
MAX_WRAPPED = 64

#: Processes beside the ranks' own that are told apart.
MAX_DESCENDANTS = 256

#: Wrappers that keep the models of several processes alike.
SHARDING = frozenset({"FullyShardedDataParallel", "fully_shard"})
SYNCHRONISING = SHARDING | {"DistributedDataParallel"}


class SplitTable:
    """The splits of one process, by id."""

    def __init__(self) -> None:
        self._kept: dict[int, BatchSplit] = {}
        self._passing: LruCache[int, BatchSplit] = LruCache(MAX_PASSING_SPLITS)

    def get(self, number: int) -> BatchSplit | None:
        return self._kept.get(number) or self._passing.get(number)

    def put(self, split: BatchSplit) -> None:
        if len(self._kept) < MAX_INTERNED:
            self._kept[split.id] = split
        else:
            self._passing.put(split.id, split)


@dataclass(frozen=True, slots=True)
class ProcessBatch:
    """What one process did with its part of one step in one wrapped module, micro-batches added up."""

    module: str
    batch_rows: int | None
    devices: tuple[int, ...]
    rows: tuple[int | None, ...]
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]


@dataclass(frozen=True, slots=True)
class StepWork:
    """The batches of one step, one for each wrapped module that took part. The per-device fields of the step run
    parallel to `devices`, as `tokens` do. Not `known`: its splits never came."""

    batches: tuple[ProcessBatch, ...]
    devices: tuple[int, ...]
    known: bool = True
    tokens: tuple[int | None, ...] = ()

    def tokens_at(self, position: int) -> int | None:
        return self.tokens[position] if position < len(self.tokens) else None


def work_of_unknown_splits(devices: tuple[int, ...]) -> StepWork:
    """A step whose splits never came."""
    unknown = (None,) * len(devices)
    return StepWork((ProcessBatch("", None, devices, unknown, unknown, unknown),), devices, known=False)


def sum_forwards(splits: Sequence[BatchSplit]) -> StepWork:
    """The forwards of one step, those of each module as one batch; shapes are those of its first forward."""
    by_module: dict[str, list[BatchSplit]] = {}
    for split in splits:
        by_module.setdefault(split.module, []).append(split)
    devices = dict.fromkeys(device for split in splits for device in split.devices)
    batches = tuple(_sum_module(module, forwards) for module, forwards in by_module.items())
    ids = [split for split in splits if split.holds_tokens]
    tokens = tuple(sum_known([_count_tokens(split, device) for split in ids]) for device in devices) if ids else ()
    return StepWork(batches, tuple(devices), tokens=tokens)


def _count_tokens(split: BatchSplit, device: int) -> int | None:
    """The elements of a device's part of a batch of token ids; `None` where it got something else."""
    if device not in split.devices or split.rows[split.devices.index(device)] == 0:
        return 0
    shape = split.input_shapes[split.devices.index(device)]
    return shape[0] * shape[1] if shape is not None and len(shape) == 2 else None


def _sum_module(module: str, splits: Sequence[BatchSplit]) -> ProcessBatch:
    first = splits[0]
    rows: dict[int, list[int | None]] = {device: [] for device in first.devices}
    for split in splits:
        for device, count in zip(split.devices, split.rows, strict=True):
            rows.setdefault(device, []).append(count)
    beyond = len(rows) - len(first.devices)
    return ProcessBatch(
        module=module,
        batch_rows=sum_known([split.batch_rows for split in splits]),
        devices=tuple(rows),
        rows=tuple(sum_known(counts) for counts in rows.values()),
        input_shapes=first.input_shapes + (None,) * beyond,
        output_shapes=first.output_shapes + (None,) * beyond,
    )


def sum_known(counts: Sequence[int | None]) -> int | None:
    """The sum; `None` when one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def is_evaluation(loaded: Loaded) -> bool:
    """Whether it is a whole pass in which a model was called for the batches, and nothing was trained."""
    return not loaded.trained and loaded.complete and bool(loaded.rows) and 2 * loaded.forwards >= loaded.batches


@dataclass(slots=True)
class LoaderPasses:
    """The passes of one process over its DataLoaders."""

    latest: OrderedDict[tuple[bool, int], Loaded] = field(default_factory=OrderedDict)  # trained on, and their number
    counts: Counter[bool] = field(default_factory=Counter)  # passes that were trained on, and others
    batches: dict[int, int] = field(default_factory=dict)  # by loader, in passes that were trained on
    num_workers: dict[int, int] = field(default_factory=dict)  # by loader: processes that make its batches
    evaluations: deque[Loaded] = field(default_factory=lambda: deque(maxlen=MAX_EVALUATIONS))
    _contents: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)  # by loader, and index of the row

    def contents_of(self, loaded: Loaded) -> Mapping[int, tuple[int, ...]]:
        """Checksums of the first rows of a loader, by index."""
        return self._contents.get(loaded.loader, {})

    def add_loader(self, opened: LoaderOpened) -> None:
        if len(self.num_workers) < MAX_PASSES:
            self.num_workers[opened.loader] = opened.num_workers

    def training_workers(self) -> set[int]:
        """The numbers of workers of the loaders that were trained on, or of all while no pass has ended."""
        loaders = self.batches.keys() or self.num_workers.keys()
        return {self.num_workers[loader] for loader in loaders if loader in self.num_workers}

    def add(self, loaded: Loaded) -> None:
        if loaded.contents and len(self._contents) < MAX_COMPARED:
            self._contents[loaded.loader] = {row[0]: row[1:] for row in loaded.contents if row}
        if loaded.contents:
            loaded = msgspec.structs.replace(loaded, contents=())
        self.latest[loaded.trained, self.counts[loaded.trained]] = loaded
        self.counts[loaded.trained] += 1
        if len(self.latest) > MAX_PASSES:
            self.latest.popitem(last=False)
        if is_evaluation(loaded):
            self.evaluations.append(loaded)
        if loaded.trained and (loaded.loader in self.batches or len(self.batches) < MAX_PASSES):
            self.batches[loaded.loader] = self.batches.get(loaded.loader, 0) + loaded.batches


@dataclass(slots=True)
class ProcessState:
    """One process. `origin` is the rank that it is or descends from, `rank` the one whose steps its steps are."""

    origin: int
    source: int  # 0: the rank's own process
    rank: int
    ended: bool = False
    splits: SplitTable = field(default_factory=SplitTable)
    works: LruCache[tuple[int, ...], StepWork] = field(default_factory=lambda: LruCache(MAX_CACHED))
    group: Group | None = None
    outcome: Outcome | None = None
    program_began: float | None = None  # seconds since the epoch
    program_ended: float | None = None
    last_step_at: float | None = None
    joining_since: float | None = None  # it waits in init_process_group; seconds since the epoch
    began: Began | None = None
    last_step_seconds: float = 0.0  # how long its latest step took, where that is known
    activity: Activity | None = None
    wrapped: set[tuple[str, str]] = field(default_factory=set)  # kind of wrapper, and class of what is in it
    reducers: int = 0  # models that DistributedDataParallel has wrapped
    gradient_bytes: int | None = None  # of the only one of them
    passes: LoaderPasses = field(default_factory=LoaderPasses)
    noise: Noise | None = None
    loss_weights: LossWeights | None = None
    pauses: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_EVALUATIONS))  # begin, end
    gradients: GradientObservations = field(default_factory=GradientObservations)
    done: dict[str, int] = field(default_factory=dict)  # by phase: steps, as it counts them itself
    trained_forwards: int = 0

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

    def wall_ms(self, now: float | None) -> float | None:
        """How long its program has run at `now`; `None` where it has not begun. Where it is not known when a program
        ended (it was killed), that was at its last step."""
        until = self.program_ended or (self.last_step_at if self.ended else now)
        if self.program_began is None or until is None:
            return None
        wall_ms = max(0.0, until - self.program_began) * 1000.0
        return wall_ms if math.isfinite(wall_ms) else None  # a rank may tell any times

    @property
    def worked(self) -> bool:
        """Whether a forward or a step of it was seen, if only its beginning."""
        activity = self.activity
        counted = activity is not None and bool(activity.forwards or activity.steps)
        return bool(self.done) or self.began is not None or counted

    @property
    def trained(self) -> bool:
        return self.done.get("train", 0) > 0

    @property
    def averages_gradients(self) -> bool:
        """Whether a wrapper keeps its model like those of other processes, or the program itself adds up tensors."""
        reduces = self.activity is not None and self.activity.reductions > 0
        return reduces or any(kind in SYNCHRONISING for kind, _ in self.wrapped)

    @property
    def exchanges_tensors(self) -> bool:
        """Whether it sends tensors to other processes in a way that may keep its model like theirs, or may not."""
        return self.activity is not None and self.activity.exchanges > 0

    @property
    def shares_tensors(self) -> bool:
        """Whether its model lies across several processes, which then need the same rows."""
        return any(kind == "parallelize_module" for kind, _ in self.wrapped)

    @property
    def unfinished(self) -> Began | None:
        """The step that it began and has not finished."""
        return self.began if self.began is not None and self.began.step >= self.done.get(self.began.phase, 0) else None

    def count_step(self, step: Step) -> int:
        """Count a step; returns by how much it is beyond the last one of its phase."""
        before = self.done.get(step.phase, 0)
        self.done[step.phase] = step.step + 1
        if self.began is not None and self.began.step == step.step:
            self.last_step_seconds = step.at - self.began.at
        elif step.cycle_ms is not None and step.cycle_ms < math.inf:
            self.last_step_seconds = step.cycle_ms / 1000
        if step.cycle_ms is not None and LONG_PAUSE_MS <= step.cycle_ms - (step.data_wait_ms or 0.0) < math.inf:
            self.pauses.append((step.at - step.cycle_ms / 1000, step.at))
        if step.phase == "train":
            if self.began is not None and self.began.phase == "forward" and step.at >= self.began.at:
                self.began = None  # a backward followed what was announced as a forward without one
            self.trained_forwards += len(step.splits)
        return max(1, step.step + 1 - before)

    def add_wrapper(self, wrapped: Wrapped) -> None:
        if len(self.wrapped) < MAX_WRAPPED:
            self.wrapped.add((wrapped.kind, wrapped.inside))
        if wrapped.kind == "DistributedDataParallel":
            self.reducers += 1
            self.gradient_bytes = wrapped.gradient_bytes if self.reducers == 1 else None

    def mark_ended(self) -> None:
        """Note its end, and drop what only further steps would need."""
        self.ended = True
        self.splits = SplitTable()
        self.works = LruCache(MAX_CACHED)


class ProcessTable:
    """All processes of an attempt with `ranks` ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.expected = set(range(ranks))  # ranks that should send steps
        self._states = {(rank, 0): ProcessState(rank, 0, rank) for rank in range(ranks)}

    def get(self, rank: int, source: int) -> ProcessState | None:
        return self._states.get((rank, source))

    def all_processes(self) -> tuple[ProcessState, ...]:
        return tuple(self._states.values())

    def find_or_add(self, rank: int, source: int) -> ProcessState | None:
        """The process that sent a record; `None` when there are too many to tell apart.

        Raises:
            ValueError: the attempt has no such rank.
        """
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank} is outside the {self.ranks} ranks of this attempt")
        process = self._states.get((rank, source))
        if process is None and len(self._states) < self.ranks + MAX_DESCENDANTS:
            process = self._states[rank, source] = ProcessState(rank, source, rank)
        return process

    def has_successor(self, ended: ProcessState) -> bool:
        """Whether a living process may send further steps of the rank of one that has ended: one that has sent some,
        or any where the ended one has sent none."""
        alive = [other for other in self._states.values() if other.rank == ended.rank and not other.ended]
        return any(other.done or not ended.done for other in alive)

    @property
    def succeeded(self) -> bool:
        """Whether every rank has ended with exit code 0."""
        outcomes = [self._states[rank, 0].outcome for rank in range(self.ranks)]
        return all(outcome is not None and outcome.exit_code == 0 for outcome in outcomes)
