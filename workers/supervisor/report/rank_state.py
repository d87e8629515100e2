"""What each process of an attempt has told: how it divided its batches, and what it did in all.

A recipe has one process for each rank. A script's rank may have descendants that train in its place, by
`multiprocessing` or by starting the script again; each is a process with a `source` of its own, and its
steps count for the rank that it has in its process group.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from jobs.protocol.records import MAX_INTERNED, Activity, Began, Group, Loaded, Outcome, Shape, Split, Step, Wrapped

#: Splits from `MAX_INTERNED` on are sent anew for every step, so only the latest are kept.
MAX_PASSING_SPLITS = 64
#: Sums over micro-batches that are kept to save time.
MAX_CACHED = 256
#: Passes over a DataLoader that are kept, the latest ones.
MAX_PASSES = 64
#: Wrapped modules that are remembered.
MAX_WRAPPED = 64

#: Wrappers that keep the models of several processes alike.
SHARDING = frozenset({"FullyShardedDataParallel", "fully_shard"})
SYNCHRONISING = SHARDING | {"DistributedDataParallel"}

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping of bounded size that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> V:
        self._entries[key] = value
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value


class Splits:
    """The splits of one process, by id."""

    def __init__(self) -> None:
        self._kept: dict[int, Split] = {}
        self._passing: Recent[int, Split] = Recent(MAX_PASSING_SPLITS)

    def get(self, number: int) -> Split | None:
        return self._kept.get(number) or self._passing.get(number)

    def put(self, split: Split) -> None:
        if len(self._kept) < MAX_INTERNED:
            self._kept[split.id] = split
        else:
            self._passing.put(split.id, split)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one process did with its part of one step in one wrapped module, micro-batches added up."""

    module: str
    batch_rows: int | None
    devices: tuple[int, ...]
    rows: tuple[int | None, ...]
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """The batches of one step, one for each wrapped module that took part. The per-device fields of the step run
    parallel to `devices`. Not `known`: its splits never came."""

    batches: tuple[Batch, ...]
    devices: tuple[int, ...]
    known: bool = True


def unknown_work(devices: tuple[int, ...]) -> Work:
    """A step whose splits never came."""
    unknown = (None,) * len(devices)
    return Work((Batch("", None, devices, unknown, unknown, unknown),), devices, known=False)


def add_up(splits: Sequence[Split]) -> Work:
    """The forwards of one step, those of each module as one batch; shapes are those of its first forward."""
    by_module: dict[str, list[Split]] = {}
    for split in splits:
        by_module.setdefault(split.module, []).append(split)
    devices = dict.fromkeys(device for split in splits for device in split.devices)
    return Work(tuple(_add_up(module, forwards) for module, forwards in by_module.items()), tuple(devices))


def _add_up(module: str, splits: Sequence[Split]) -> Batch:
    first = splits[0]
    rows: dict[int, list[int | None]] = {device: [] for device in first.devices}
    for split in splits:
        for device, count in zip(split.devices, split.rows, strict=True):
            rows.setdefault(device, []).append(count)
    beyond = len(rows) - len(first.devices)
    return Batch(
        module=module,
        batch_rows=total([split.batch_rows for split in splits]),
        devices=tuple(rows),
        rows=tuple(total(counts) for counts in rows.values()),
        input_shapes=first.input_shapes + (None,) * beyond,
        output_shapes=first.output_shapes + (None,) * beyond,
    )


def total(counts: Sequence[int | None]) -> int | None:
    """The sum; `None` when one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@dataclass(slots=True)
class Process:
    """One process. `origin` is the rank that it is or descends from, `rank` the one whose steps its steps are."""

    origin: int
    source: int  # 0: the rank's own process
    rank: int
    ended: bool = False
    splits: Splits = field(default_factory=Splits)
    works: Recent[tuple[int, ...], Work] = field(default_factory=lambda: Recent(MAX_CACHED))
    group: Group | None = None
    outcome: Outcome | None = None
    began: Began | None = None
    activity: Activity | None = None
    wrapped: set[tuple[str, str]] = field(default_factory=set)  # kind of wrapper, and class of what is in it
    passes: OrderedDict[tuple[bool, int], Loaded] = field(default_factory=OrderedDict)  # trained on, and their number
    passed: Counter[bool] = field(default_factory=Counter)  # passes that were trained on, and others
    batches_loaded: dict[int, int] = field(default_factory=dict)  # by loader, in passes that were trained on
    done: dict[str, int] = field(default_factory=dict)  # by phase: steps, as it counts them itself
    trained_forwards: int = 0

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

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
    def synchronised(self) -> bool:
        """Whether a wrapper keeps its model like those of other processes."""
        return any(kind in SYNCHRONISING for kind, _ in self.wrapped)

    @property
    def shares_tensors(self) -> bool:
        """Whether its model lies across several processes, which then need the same rows."""
        return any(kind == "parallelize_module" for kind, _ in self.wrapped)

    @property
    def unfinished(self) -> Began | None:
        """The step that it began and has not finished."""
        return self.began if self.began is not None and self.began.step >= self.done.get(self.began.phase, 0) else None

    def step(self, step: Step) -> int:
        """Take note of a step; by how much it is beyond the last one of its phase."""
        before = self.done.get(step.phase, 0)
        self.done[step.phase] = step.step + 1
        if step.phase == "train":
            self.trained_forwards += len(step.splits)
        return max(1, step.step + 1 - before)

    def loaded(self, loaded: Loaded) -> None:
        self.passes[loaded.trained, self.passed[loaded.trained]] = loaded
        self.passed[loaded.trained] += 1
        if len(self.passes) > MAX_PASSES:
            self.passes.popitem(last=False)
        if loaded.trained and (loaded.loader in self.batches_loaded or len(self.batches_loaded) < MAX_PASSES):
            self.batches_loaded[loaded.loader] = self.batches_loaded.get(loaded.loader, 0) + loaded.batches

    def wraps(self, wrapped: Wrapped) -> None:
        if len(self.wrapped) < MAX_WRAPPED:
            self.wrapped.add((wrapped.kind, wrapped.inside))

    def end(self) -> None:
        """Forget what only further steps would need."""
        self.ended = True
        self.splits = Splits()
        self.works = Recent(MAX_CACHED)
