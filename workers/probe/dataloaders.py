"""Passes over DataLoaders: how many rows they delivered, and which. No torch here.

A pass is one iterator. It is complete when the iterator raises StopIteration, and was left early when the next one
begins, or when the iterator is garbage.
"""

import functools
import itertools
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Loaded, LoaderOpened
from jobs.protocol.records import ProgramProgress
from workers.probe.comparison.row_contents import BatchContents, RowContents
from workers.probe.shapes import tensors_in

PROGRESS_SECONDS = 1.0
#: A digest is 63 bits, so that it fits an integer in every reader.
DIGEST_BITS = (1 << 63) - 1
#: How many entries are read of a list that has one for each row.
SAMPLED = 1000
#: How deep to search for what shards a loader: samplers within samplers, data sets within data sets.
MAX_NESTING = 6
#: Loaders of a process whose first pass is compared with those of other ranks.
MAX_COMPARED = 8
#: Loaders of a process that are announced.
MAX_ANNOUNCED = 64
DISTRIBUTED_SAMPLER = ("torch.utils.data.distributed", "DistributedSampler")
#: What samplers and data sets call the number of shards, and their own.
SHARDS = (("num_replicas", "rank"), ("num_processes", "process_index"), ("num_shards", "shard_index"))


@dataclass(slots=True)
class LoaderPass:
    """One iterator over a loader. `batches_drawn` iterates over the indices of each batch a second time, where they are
    torch's own lists. Otherwise `drawn` has rows and digest of the batches that were drawn from the sampler and not
    delivered yet: a program's own sampler might change its lists."""

    loader: int
    number: int
    facts: "LoaderFacts"
    steps_before: int
    batches: int = 0
    rows: int | None = 0
    digest: int | None = 0
    batches_drawn: Iterator[list[Any]] | None = None
    drawn: deque[tuple[int | None, int | None]] = field(default_factory=deque)
    progress_sent: float = field(default_factory=time.perf_counter)
    contents: RowContents | BatchContents | None = None  # where it is looked at
    forwards_before: int = 0
    began_at: float = field(default_factory=time.time)
    seconds: float = 0.0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the attributes of a loader say about it."""

    batches: int | None
    dataset_rows: int | None
    batch_size: int | None
    sampler: str
    replicas: int | None
    replica: int | None
    indices: Sequence[int] | None  # of a Subset: two shards have the same numbers within different subsets
    salt: int  # tells data sets apart that hold different rows under the same indices
    is_plain: bool  # torch's own BatchSampler, which makes a new list for each batch; of numbers, not of nothing
    collates: bool  # makes batches itself; otherwise an item may be any number of rows
    is_iterable: bool  # of a data set that has no indices
    shuffles: bool | None  # a DistributedSampler of torch does
    sampler_number: int | None  # of that sampler


class LoaderTracker:
    """Follows every pass. `steps` counts the optimizer steps that the step builder has seen, `all_steps` also those
    on the tape of the fast path. `defer` runs an action when everything before it has been handed over."""

    def __init__(
        self, emit: Callable[[AnyRecord], None], steps: Callable[[], int], forwards: Callable[[], int]
    ) -> None:
        self._emit = emit
        self._sent_steps = self.all_steps = steps
        self._sent_forwards = forwards
        self.defer: Callable[[Callable[[], None]], None] = lambda action: action()
        self.compares = False  # there are other ranks
        self._pass_numbers: weakref.WeakKeyDictionary[Any, tuple[int, Iterator[int]]] = weakref.WeakKeyDictionary()
        self._loader_numbers = itertools.count()
        self._sampler_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._free_sampler_numbers = itertools.count()
        self._open_passes: dict[int, LoaderPass] = {}  # by loader
        self._latest_pass: LoaderPass | None = None
        self._dropped: deque[LoaderPass] = deque()  # their iterators are garbage; sent with the next event

    @property
    def is_evaluating(self) -> bool:
        """Whether nothing was trained since a pass began."""
        return self._latest_pass is not None and self.all_steps() == self._latest_pass.steps_before

    def begin_pass(self, iterator: Any, loader: Any, first: bool = False) -> bool:
        """`iterator` starts a pass over `loader`, or starts again; `first` where that is the same pass. False where
        `add_drawn` must be called with what it draws from its sampler."""
        known: LoaderPass | None = iterator._watched_pass
        current = known if known is not None and first else self._open_pass(iterator, loader)
        drawing = getattr(iterator, "_sampler_iter", None)
        compares = self.compares and current.number == 0 and current.loader < MAX_COMPARED
        if not current.facts.is_plain or type(drawing) is not GeneratorType:
            if compares and current.facts.is_iterable:
                current.contents = BatchContents()
            return False
        iterator._sampler_iter, current.batches_drawn = itertools.tee(drawing)
        if compares and current.facts.collates:
            current.contents = RowContents()
        return True

    def _open_pass(self, iterator: Any, loader: Any) -> LoaderPass:
        if loader not in self._pass_numbers:
            self._pass_numbers[loader] = next(self._loader_numbers), itertools.count()
            self._announce_loader(loader)
        number, passes = self._pass_numbers[loader]
        if number in self._open_passes:
            self.defer(functools.partial(self._close_pass, self._open_passes[number], complete=False))
        facts = loader_facts(loader, self._number_sampler(distributed_sampler(loader)))
        current = LoaderPass(number, next(passes), facts, self.all_steps(), digest=facts.salt)
        if iterator._watched_pass is None:
            weakref.finalize(iterator, self._drop_pass, current).atexit = False
        iterator._watched_pass = self._open_passes[number] = self._latest_pass = current
        self.defer(functools.partial(self._note_forwards, current))
        return current

    def _announce_loader(self, loader: Any) -> None:
        (number, _), workers = self._pass_numbers[loader], _safe_attribute(loader, "num_workers")
        if number < MAX_ANNOUNCED and type(workers) is int:
            self._emit(LoaderOpened(number, workers))

    def _number_sampler(self, sampler: Any) -> int | None:
        if sampler is None:
            return None
        if sampler not in self._sampler_numbers:
            self._sampler_numbers[sampler] = next(self._free_sampler_numbers)
        return self._sampler_numbers[sampler]

    def _note_forwards(self, current: LoaderPass) -> None:
        """All that was before a pass has been handed over."""
        current.forwards_before = self._sent_forwards()

    def _drop_pass(self, current: LoaderPass) -> None:
        """An iterator is garbage. Batches that it delivered may still be on the tape."""
        self.defer(functools.partial(self._dropped.append, current))

    def add_drawn(self, iterator: Any, indices: Any) -> None:
        """The sampler yielded the indices of one batch (or one index, where the program batches by itself)."""
        current: LoaderPass | None = iterator._watched_pass
        if current is not None:
            batch = _as_list(indices)
            # A sampler of an iterable data set yields no indices.
            rows = len(batch) if current.facts.collates and batch and batch[0] is not None else None
            current.drawn.append((rows, digest_indices(batch, current.facts.indices)))

    def count_delivered(self, iterator: Any, batch: Any, arrived: float) -> int | None:
        """A batch was delivered; the number of its rows, where it is known."""
        current: LoaderPass | None = iterator._watched_pass
        if self._dropped:
            self.send_dropped()
        if current is None:
            return None
        if current.contents is not None and current.contents.wants_more:
            current.contents.add_batch(batch)
        if current.batches_drawn is not None:
            return self.count_drawn(current, arrived)
        rows, mixed = current.drawn.popleft() if current.drawn else (None, None)
        if rows is None and current.facts.collates:
            rows = _rows_of_batch(batch)
        return self._count_batch(current, rows, mixed, arrived)

    def count_drawn(self, current: LoaderPass, arrived: float) -> int:
        """Count a batch whose indices are drawn a second time, maybe some time after it was delivered; the number of
        its rows."""
        if self._dropped:
            self.send_dropped()
        indices = next(current.batches_drawn) if current.batches_drawn is not None else []
        if current.contents is not None:
            own = current.facts.indices
            current.contents.add_indices(indices if own is None else [own[index] for index in indices])
        self._count_batch(current, len(indices), digest_indices(indices, current.facts.indices), arrived)
        return len(indices)

    def _count_batch(self, current: LoaderPass, rows: int | None, mixed: int | None, arrived: float) -> int | None:
        current.batches += 1
        current.rows = None if rows is None or current.rows is None else current.rows + rows
        current.digest = None if mixed is None or current.digest is None else (current.digest + mixed) & DIGEST_BITS
        if arrived - current.progress_sent >= PROGRESS_SECONDS:
            current.progress_sent = arrived
            self._emit(ProgramProgress(current.batches, current.facts.batches, "batch", "loader"))
        return rows

    def end_pass(self, iterator: Any) -> None:
        current: LoaderPass | None = iterator._watched_pass
        if current is not None:
            current.seconds = time.time() - current.began_at
            self.defer(functools.partial(self._close_pass, current, complete=True))

    def send_dropped(self) -> None:
        """Send the passes whose iterators are garbage."""
        while self._dropped:
            self._close_pass(self._dropped.popleft(), complete=False)

    def finish(self) -> None:
        self.send_dropped()
        for current in list(self._open_passes.values()):
            self._close_pass(current, complete=False)

    def _close_pass(self, current: LoaderPass, *, complete: bool) -> None:
        if current.is_over:
            return
        current.is_over = True
        if self._open_passes.get(current.loader) is current:
            del self._open_passes[current.loader]
        facts = current.facts
        self._emit(
            Loaded(
                loader=current.loader,
                number=current.number,
                batches=current.batches,
                rows=current.rows,
                dataset_rows=facts.dataset_rows,
                batch_size=facts.batch_size,
                sampler=facts.sampler,
                replicas=facts.replicas,
                replica=facts.replica,
                digest=current.digest if current.batches else None,
                complete=complete,
                trained=self._sent_steps() > current.steps_before,
                contents=() if current.contents is None else current.contents.rows(),
                shuffles=facts.shuffles,
                sampler_number=facts.sampler_number,
                forwards=self._sent_forwards() - current.forwards_before,
                began_at=current.began_at,
                seconds=current.seconds,
                first_batches=() if current.contents is None else current.contents.batches(),
            )
        )


def _as_list(indices: Any) -> Sequence[Any]:
    """What a sampler yielded for one batch, as a list; an empty one where it cannot be one."""
    if isinstance(indices, (list, tuple)):
        return indices
    plain = indices.tolist() if hasattr(indices, "tolist") else indices
    if isinstance(plain, list):
        return plain
    return [] if hasattr(plain, "__len__") else [plain]


def digest_indices(batch: Sequence[Any], indices: Sequence[int] | None) -> int | None:
    """A sum of hashes of the indices, the same for any order, or None where these are no numbers.

    The hash is Python's of a tuple of one: it spreads small numbers, and is the same in every process.
    """
    if not batch or not hasattr(batch[0], "__index__") or hasattr(batch[0], "backward"):  # no number, or a tensor
        return None
    if indices is not None:
        batch = [indices[index] for index in batch]
    return sum(map(hash, zip(batch, strict=False))) & DIGEST_BITS


def _rows_of_batch(batch: Any) -> int | None:
    """Rows of a batch of which no indices are known: the first dimension on which all its tensors agree."""
    sizes = {tensor.shape[0] for tensor in itertools.islice(tensors_in(batch), 8) if tensor.dim()}
    return int(sizes.pop()) if len(sizes) == 1 else None


def distributed_sampler(loader: Any) -> Any:
    """torch's own sampler that gives each rank its part, where the loader has one."""
    batches = _safe_attribute(loader, "batch_sampler")
    sampler = _safe_attribute(loader if batches is None else batches, "sampler")
    kind = type(sampler)
    return sampler if (kind.__module__, kind.__name__) == DISTRIBUTED_SAMPLER else None


def loader_facts(loader: Any, sampler_number: int | None = None) -> LoaderFacts:
    dataset, sampler = _safe_attribute(loader, "dataset"), _safe_attribute(loader, "sampler")
    batches = _safe_attribute(loader, "batch_sampler")
    replicas, replica = _find_shard(batches, sampler, dataset)
    indices = _safe_attribute(dataset, "indices") if type(dataset).__name__ == "Subset" else None
    is_torchs = type(batches).__name__ == "BatchSampler"
    shown = _safe_attribute(batches, "sampler") if is_torchs else batches if batches is not None else sampler
    is_plain = is_torchs and type(batches).__module__ == "torch.utils.data.sampler"
    shuffles = _safe_attribute(distributed_sampler(loader), "shuffle")
    size = _safe_attribute(loader, "batch_size") or _safe_attribute(batches, "batch_size")
    return LoaderFacts(
        batches=_safe_length(loader),
        dataset_rows=_safe_length(dataset),
        batch_size=size if isinstance(size, int) else None,
        sampler=type(shown).__name__,
        replicas=replicas,
        replica=replica,
        indices=indices if isinstance(indices, (list, tuple, range)) else None,
        salt=_dataset_salt(dataset) if indices is None else 0,
        is_plain=is_plain and type(shown).__name__ != "_InfiniteConstantSampler",
        collates=batches is not None,
        is_iterable=type(shown).__name__ == "_InfiniteConstantSampler",
        shuffles=shuffles if isinstance(shuffles, bool) else None,
        sampler_number=sampler_number,
    )


def _dataset_salt(dataset: Any) -> int:
    """A number made of a data set's fingerprint, or of the numbers or names that it keeps, one for each row (which
    rows of a file are its own, which files, their labels). Copies of one data set have the same on every rank."""
    fingerprint = _safe_attribute(dataset, "_fingerprint")
    if isinstance(fingerprint, str):
        return zlib.crc32(fingerprint.encode())
    rows = _safe_length(dataset) or 0
    kept = (_safe_attribute(dataset, "__dict__") or {}).values()
    lists = [one[:: 1 + rows // SAMPLED] for one in kept if type(one) in (list, tuple, range) and len(one) == rows]
    plain = [list(one) for one in lists if all(type(entry) in (int, str) for entry in one)]
    return zlib.crc32(repr(plain).encode(errors="replace")) if plain else 0


def _safe_attribute(thing: Any, name: str) -> Any:
    """An attribute of an object of the program, whose properties may raise anything."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001
        return None


def _safe_length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # noqa: BLE001  (a program's own __len__ may raise anything)
        return None


def _find_shard(*sources: Any) -> tuple[int | None, int | None]:
    """The number of shards and the one of this loader, from the first object that has both."""
    for source in sources:
        for thing in itertools.islice(_nested_sources(source), MAX_NESTING):
            for count, own in SHARDS:
                shards, shard = _safe_attribute(thing, count), _safe_attribute(thing, own)
                if type(shards) is int and type(shard) is int:
                    return shards, shard
    return None, None


def _nested_sources(thing: Any) -> Iterator[Any]:
    """A sampler and those within it, or a data set and those within it."""
    while thing is not None:
        yield thing
        inner = (_safe_attribute(thing, name) for name in ("batch_sampler", "sampler", "dataset"))
        thing = next((part for part in inner if part is not None), None)
