"""Passes over DataLoaders: how many rows they brought, and which. No torch here.

A pass is one iterator. It has ended when the iterator says so, and was left when the next one begins, or
when nobody holds it any more.
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

from jobs.protocol.records import AnyRecord, Loaded, Progress
from workers.probe.shapes import tensors_in

PROGRESS_SECONDS = 1.0
#: A digest is 63 bits, so that every reader has a number for it.
DIGEST_BITS = (1 << 63) - 1
#: How many entries of a list with one for each row are looked at.
SAMPLED = 1000
#: How far to look for what shards a loader: samplers within samplers, data sets within data sets.
MAX_DEPTH = 6
#: What those who shard call the number of shards, and which of them is theirs.
SHARDS = (("num_replicas", "rank"), ("num_processes", "process_index"), ("num_shards", "shard_index"))


@dataclass(slots=True)
class Pass:
    """One iterator over a loader. `batches_drawn` brings the indices of each batch once more, where they are torch's
    own lists. Otherwise `drawn` has rows and digest of what was drawn from the sampler and not delivered yet: a
    program's own sampler might change its lists."""

    loader: int
    number: int
    facts: "Facts"
    steps_before: int
    batches: int = 0
    rows: int | None = 0
    digest: int | None = 0
    batches_drawn: Iterator[list[Any]] | None = None
    drawn: deque[tuple[int | None, int | None]] = field(default_factory=deque)
    told: float = field(default_factory=time.perf_counter)
    over: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What a loader says about itself."""

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


def _at_once(act: Callable[[], None]) -> None:
    act()


class Loaders:
    """Follows every pass. `steps` tells how many optimizer steps there were so far, as far as they were told, and
    `steps_now` counts all. `later` does something when all that came before it has been told."""

    def __init__(self, emit: Callable[[AnyRecord], None], steps: Callable[[], int]) -> None:
        self._emit = emit
        self._steps = self.steps_now = steps
        self.later: Callable[[Callable[[], None]], None] = _at_once
        self._numbers: weakref.WeakKeyDictionary[Any, tuple[int, Iterator[int]]] = weakref.WeakKeyDictionary()
        self._count = itertools.count()
        self._open: dict[int, Pass] = {}  # by loader
        self._left: deque[Pass] = deque()  # dropped by the program; told with the next event

    def begins(self, iterator: Any, loader: Any, first: bool = False) -> bool:
        """`iterator` starts a pass over `loader`, or starts again; `first` where that is the same pass. False where
        `drew` must be called with what it draws from its sampler."""
        known: Pass | None = iterator._watched_pass
        begun = known if known is not None and first else self._begin(iterator, loader)
        drawing = getattr(iterator, "_sampler_iter", None)
        if not begun.facts.is_plain or type(drawing) is not GeneratorType:
            return False
        iterator._sampler_iter, begun.batches_drawn = itertools.tee(drawing)
        return True

    def _begin(self, iterator: Any, loader: Any) -> Pass:
        if loader not in self._numbers:
            self._numbers[loader] = next(self._count), itertools.count()
        number, passes = self._numbers[loader]
        if number in self._open:
            self.later(functools.partial(self._end, self._open[number], complete=False))
        facts = facts_of(loader)
        begun = Pass(number, next(passes), facts, self.steps_now(), digest=facts.salt)
        if iterator._watched_pass is None:
            weakref.finalize(iterator, self._dropped, begun).atexit = False
        iterator._watched_pass = self._open[number] = begun
        return begun

    def _dropped(self, begun: Pass) -> None:
        """Nobody holds an iterator any more. Batches that it brought may have to be told yet."""
        self.later(functools.partial(self._left.append, begun))

    def drew(self, iterator: Any, indices: Any) -> None:
        """The sampler gave the indices of one batch (or one index, where the program batches by itself)."""
        running: Pass | None = iterator._watched_pass
        if running is not None:
            batch = _listed(indices)
            rows = _count(batch) if running.facts.collates else None
            running.drawn.append((rows, digest(batch, running.facts.indices)))

    def came(self, iterator: Any, batch: Any, arrived: float) -> int | None:
        """A batch was delivered; the number of its rows, where it is known."""
        running: Pass | None = iterator._watched_pass
        if self._left:
            self.tell_left()
        if running is None:
            return None
        if running.batches_drawn is not None:
            return self.took(running, arrived)
        rows, mixed = running.drawn.popleft() if running.drawn else (None, None)
        if rows is None and running.facts.collates:
            rows = _rows(batch)
        return self._add(running, rows, mixed, arrived)

    def took(self, running: Pass, arrived: float) -> int:
        """What `came` does, maybe some time later, for a batch whose indices are drawn once more; the number of its
        rows."""
        if self._left:
            self.tell_left()
        indices = next(running.batches_drawn) if running.batches_drawn is not None else []
        self._add(running, len(indices), digest(indices, running.facts.indices), arrived)
        return len(indices)

    def _add(self, running: Pass, rows: int | None, mixed: int | None, arrived: float) -> int | None:
        running.batches += 1
        running.rows = None if rows is None or running.rows is None else running.rows + rows
        running.digest = None if mixed is None or running.digest is None else (running.digest + mixed) & DIGEST_BITS
        if arrived - running.told >= PROGRESS_SECONDS:
            running.told = arrived
            self._emit(Progress(running.batches, running.facts.batches, "batch", "loader"))
        return rows

    def ended(self, iterator: Any) -> None:
        running: Pass | None = iterator._watched_pass
        if running is not None:
            self.later(functools.partial(self._end, running, complete=True))

    def tell_left(self) -> None:
        """Send what is owed about passes that the program has dropped."""
        while self._left:
            self._end(self._left.popleft(), complete=False)

    def finish(self) -> None:
        self.tell_left()
        for running in list(self._open.values()):
            self._end(running, complete=False)

    def _end(self, running: Pass, *, complete: bool) -> None:
        if running.over:
            return
        running.over = True
        if self._open.get(running.loader) is running:
            del self._open[running.loader]
        facts = running.facts
        self._emit(
            Loaded(
                loader=running.loader,
                number=running.number,
                batches=running.batches,
                rows=running.rows,
                dataset_rows=facts.dataset_rows,
                batch_size=facts.batch_size,
                sampler=facts.sampler,
                replicas=facts.replicas,
                replica=facts.replica,
                digest=running.digest if running.batches else None,
                complete=complete,
                trained=self._steps() > running.steps_before,
            )
        )


def _listed(indices: Any) -> Sequence[Any]:
    """What a sampler gave for one batch, as a list; an empty one where its length is not to be had."""
    if isinstance(indices, (list, tuple)):
        return indices
    plain = indices.tolist() if hasattr(indices, "tolist") else indices
    if isinstance(plain, list):
        return plain
    return [] if hasattr(plain, "__len__") else [plain]


def digest(batch: Sequence[Any], indices: Sequence[int] | None) -> int | None:
    """A sum of hashes of the indices, the same for any order, or None where these are no numbers.

    The hash is Python's of a tuple of one: it spreads small numbers, and is the same in every process.
    """
    if not batch or not hasattr(batch[0], "__index__") or hasattr(batch[0], "backward"):  # no number, or a tensor
        return None
    if indices is not None:
        batch = [indices[index] for index in batch]
    return sum(map(hash, zip(batch, strict=False))) & DIGEST_BITS


def _count(batch: Sequence[Any]) -> int | None:
    """Rows of a batch by its indices; None where the sampler gives none (iterable data sets)."""
    return None if not batch or batch[0] is None else len(batch)


def _rows(batch: Any) -> int | None:
    """Rows of a batch of which no indices are known: the first dimension on which all its tensors agree."""
    sizes = {tensor.shape[0] for tensor in itertools.islice(tensors_in(batch), 8) if tensor.dim()}
    return int(sizes.pop()) if len(sizes) == 1 else None


def facts_of(loader: Any) -> Facts:
    dataset, sampler, batches = _ask(loader, "dataset"), _ask(loader, "sampler"), _ask(loader, "batch_sampler")
    replicas, replica = _shards(batches, sampler, dataset)
    indices = _ask(dataset, "indices") if type(dataset).__name__ == "Subset" else None
    is_torchs = type(batches).__name__ == "BatchSampler"
    shown = _ask(batches, "sampler") if is_torchs else batches if batches is not None else sampler
    is_plain = is_torchs and type(batches).__module__ == "torch.utils.data.sampler"
    size = _ask(loader, "batch_size") or _ask(batches, "batch_size")
    return Facts(
        batches=_length(loader),
        dataset_rows=_length(dataset),
        batch_size=size if isinstance(size, int) else None,
        sampler=type(shown).__name__,
        replicas=replicas,
        replica=replica,
        indices=indices if isinstance(indices, (list, tuple, range)) else None,
        salt=_salt(dataset) if indices is None else 0,
        is_plain=is_plain and type(shown).__name__ != "_InfiniteConstantSampler",
        collates=batches is not None,
    )


def _salt(dataset: Any) -> int:
    """A number made of a data set's fingerprint, or of the numbers or names that it keeps, one for each row (which
    rows of a file are its own, which files, their labels). Copies of one data set have the same on every rank."""
    fingerprint = _ask(dataset, "_fingerprint")
    if isinstance(fingerprint, str):
        return zlib.crc32(fingerprint.encode())
    rows = _length(dataset) or 0
    kept = (_ask(dataset, "__dict__") or {}).values()
    lists = [one[:: 1 + rows // SAMPLED] for one in kept if type(one) in (list, tuple, range) and len(one) == rows]
    plain = [list(one) for one in lists if all(type(entry) in (int, str) for entry in one)]
    return zlib.crc32(repr(plain).encode(errors="replace")) if plain else 0


def _ask(thing: Any, name: str) -> Any:
    """An attribute of an object that the program made, which may do anything when it is asked."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001
        return None


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # noqa: BLE001  (a program's own __len__ may raise anything)
        return None


def _shards(*places: Any) -> tuple[int | None, int | None]:
    """How many shards there are, and which is this one, as the first thing says that knows."""
    for place in places:
        for thing in itertools.islice(_chain(place), MAX_DEPTH):
            for count, own in SHARDS:
                shards, shard = _ask(thing, count), _ask(thing, own)
                if type(shards) is int and type(shard) is int:
                    return shards, shard
    return None, None


def _chain(thing: Any) -> Iterator[Any]:
    """A sampler and those within it, or a data set and those within it."""
    while thing is not None:
        yield thing
        inner = (_ask(thing, name) for name in ("batch_sampler", "sampler", "dataset"))
        thing = next((part for part in inner if part is not None), None)
