"""Turns what is seen of a program into steps and splits. What counts as what is said in `script`. No torch here."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from jobs.protocol.records import MAX_INTERNED, Activity, AnyRecord, Began, Metric, Note, Shape, Step
from workers.probe.clock import CLOCKS, Mark, Span
from workers.probe.fast_path import Known, Times
from workers.probe.module_registry import Models, Root
from workers.probe.shapes import rows_of
from workers.probe.step_records import DdpTimes, Owed, Reductions, Shard, Splits, Timed, sampled
from workers.runtime.context import RankContext, innermost

#: Forwards that wait for their optimizer step. A program that has more of them takes no steps that can be seen.
MAX_WAITING = 2048
#: The same before the first step.
FIRST_WAITING = 512
#: After so many times without a step it is said that there are none.
MANY = 64
ACTIVITY_SECONDS = 2.0
RATE_SECONDS = 1.0
#: Batches of the loaders with which the rows of a forward are compared: frameworks load one ahead.
RECENT_BATCHES = 4
#: After so many steps without a batch from a loader, its batches are no longer compared with.
STILL_STEPS = 2

UNSEEN = (
    "an optimizer step was taken without a forward that could be seen (torch.compile of a whole function does that, "
    "and so do modules whose forward() is called by name)"
)
NO_STEPS = "no optimizer step was seen: a backward counts as a step, and so does a forward without one"
LEFT_OVER = "some forwards in training mode, with gradients, led to no optimizer step: they are in phase forward"
SKIPPED = "GradScaler skipped the optimizer in some steps, since gradients were not finite; these steps are counted"
UNCHECKED = "rows are the first dimension of the first input: no DataLoader was there to compare with"
UNBATCHED = (
    "the first input of {} seems to have no dimension of rows: its first dimension does not fit that of the outputs, "
    "so its rows are not counted"
)
DISAGREES = (
    "the first dimension of the first input of {} is {}, and the batches of the DataLoader have {} rows: "
    "where they disagree (sequence first, inputs without a batch dimension) rows are not counted"
)


#: What a reader must know about the times of a forward, by what wraps its model.
ABOUT = {
    "": [
        ("per_device.comm_ms", "a model without a wrapper has no communication between devices that could be measured")
    ],
    "dp": [
        (
            "per_device.comm_ms",
            "DataParallel copies within one process: see primitives.scatter_ms, replicate_ms and gather_ms",
        )
    ],
    "ddp": [("per_device.comm_ms", "includes waiting for the slowest rank, and may overlap with backward_ms")],
    "fsdp": [
        ("per_device.comm_ms", "FSDP does not tell how long it communicates"),
        ("per_device.forward_ms", "includes gathering parameters, and waiting for the ranks that hold them"),
        ("per_device.backward_ms", "includes gathering parameters and reducing gradients, and waiting for other ranks"),
    ],
}
BACKWARD_OF_SHARDS = {
    "cpu": "of each shard's own operations, measured in the first ten steps and every tenth",
    "cuda": "under DataParallel the backward of all devices is one call",
}


class Load(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the loaders did between two forwards. Moments are those of `time.perf_counter`."""

    arrived: float | None = None  # when the first batch was there
    waited: float | None = None  # seconds in all
    late: float = 0.0  # of these, after the first batch
    rows: int = 0


NOTHING_LOADED = Load()


class Forward(msgspec.Struct, eq=False):
    """One call of a model from outside, or of a wrapped part of one.

    `slots` are the positions, among the devices of this process, of those that take part; `dim` is the
    dimension of the rows. `synchronous` belongs to the DistributedDataParallel that will reduce its gradients.
    """

    root: Root
    began: float
    mark: Mark
    slots: tuple[int, ...]
    dim: int
    given: Shape | None
    rows: int | None
    training: bool
    learns: bool  # with gradients
    synchronous: Reductions | None = None
    ended: float = 0.0
    returned: Shape | None = None
    span: Span | None = None
    after: int = 0  # backwards of the window that came before it
    load: Load = NOTHING_LOADED
    shards: dict[int, Shard] = {}  # by slot
    primitives: dict[str, list[Span]] = {}
    graph_ms: list[float | None] = []  # backward of each shard, by slot
    scattered: bool = False  # its wrapper divided the batch
    seen_inside: bool = False  # a wrapped part of it was a forward of its own
    in_method: bool = False  # made of calls of its parts, since it was not called itself

    @property
    def is_simple(self) -> bool:
        """It has one device, which computed it in one go."""
        return not self.scattered and len(self.slots) == 1 and not self.primitives

    def shard(self, slot: int) -> Shard | None:
        """What a device got; None where that is nothing."""
        if self.scattered:
            return self.shards.get(slot)
        return Shard(self.given, self.returned, []) if slot == self.slots[0] else None


class _Backward(msgspec.Struct, frozen=True, eq=False):
    span: Span
    ended: float
    alone: bool  # no gradients were reduced meanwhile


class _Window(msgspec.Struct, eq=False):
    """What has happened since the last step."""

    forwards: list[Forward] = []
    backwards: list[_Backward] = []
    synchronous: bool = False  # gradients of some forward will be reduced


class Windows:
    """Sends `Split`, `Step`, `Began`, `Metric`, `Activity` and `Note` records to the sink of `context`."""

    def __init__(self, context: RankContext, models: Models, first_split: int = 0) -> None:
        self.context = context
        self.models = models
        self.steps = self.forwards = self.backwards = self.reductions = 0
        self.ddp_times: Callable[[Reductions], DdpTimes | None] = lambda reductions: None
        self.memory: Callable[[int], int] | None = None
        self.rank, self.world_size = context.rank, context.world_size
        self.clock, self.on_host = CLOCKS["cpu"], True
        self._sink = context.sink
        self._emit = innermost(context.sink).emit
        self._devices = tuple(device.logical for device in context.devices)
        self._splits = Splits(context.sink, first_split)
        self._owed = Owed(context.sink)
        self._numbers = {"train": 0, "eval": 0, "forward": 0}
        self._window = _Window()
        self._undecided: Forward | None = None  # in eval mode, with gradients: training only if a backward follows
        self._recent: deque[int] = deque(maxlen=RECENT_BATCHES)
        self._still = 0  # steps since the loaders brought something
        self.load = NOTHING_LOADED
        self._known: dict[tuple[Any, ...], int] = {}  # ids of splits
        self._noted: set[tuple[str, str]] = set()
        self.learned: Callable[[Forward, str, int], None] = lambda forward, phase, split: None  # of a simple step
        self._manual = False  # gradients are made, and no optimizer uses them
        self._blind = False  # there are optimizers, and their steps are not seen
        self._stepless = 0  # times that forwards were sent without a step
        self._told = self._rated = time.perf_counter()
        self._rows_since = 0

    # -- loaders ---------------------------------------------------------------------------------

    def batch_came(self, asked: float, arrived: float, rows: int | None) -> None:
        load, waited = self.load, arrived - asked
        if load.waited is None:
            self.load = Load(arrived, waited, 0.0, rows or 0)
        else:
            self.load = Load(load.arrived, load.waited + waited, load.late + waited, load.rows + (rows or 0))
        if rows is not None:
            self._recent.append(rows)

    # -- forwards --------------------------------------------------------------------------------

    def forward_begins(self, trains: bool) -> None:
        """A forward begins: what waited for it to decide is settled, and the record goes out that it has begun."""
        self.settle()
        phase = "eval" if not trains else "train" if self.models.has_optimizers or self._manual else "forward"
        if phase == "eval" or not self._window.forwards:
            self._sink.emit(Began(self._numbers[phase], phase, time.time()))

    def forward_ends(self, forward: Forward) -> None:
        self.forwards += 1
        forward.after = len(self._window.backwards)
        forward.load, self.load = self.load, NOTHING_LOADED
        if not forward.learns or not (forward.training or self.models.has_optimizers):
            self._send_eval(forward)
        elif not forward.training:
            self._undecided = forward
        else:
            self._add(forward)

    def _add(self, forward: Forward) -> None:
        self._window.forwards.append(forward)
        self._window.synchronous = self._window.synchronous or forward.synchronous is not None
        if len(self._window.forwards) >= (MAX_WAITING if self.steps else FIRST_WAITING):
            self._blind = self._blind or not self.steps
            self._close_without_steps()

    def settle(self) -> None:
        """What the next event decides: a forward in eval mode was evaluation, and without optimizers a step ends."""
        if self._undecided is not None:
            undecided, self._undecided = self._undecided, None
            self._send_eval(undecided)
        if self._window.forwards and (self._blind or not self.models.has_optimizers):
            self._close_without_steps()

    # -- backward and steps ----------------------------------------------------------------------

    def backward_begins(self) -> None:
        if self._undecided is not None:
            undecided, self._undecided = self._undecided, None
            self._add(undecided)

    def backward_ended(self, span: Span, ended: float) -> None:
        self.backwards += 1
        window = self._window
        if len(window.backwards) < MAX_WAITING:
            window.backwards.append(_Backward(span, ended, not window.synchronous))

    def step_ended(self, ended: float) -> None:
        """An outermost optimizer step is over: everything since the last one was for it."""
        if self._undecided is not None:
            undecided, self._undecided = self._undecided, None
            self._send_eval(undecided)
        self.steps += 1
        self._blind = False
        window, self._window = self._window, _Window()
        trained = [forward for forward in window.forwards if self._is_trained(forward)]
        seen = trained or window.forwards  # an optimizer may hold copies of the parameters
        self._send("train", seen, window.backwards, ended)
        if len(window.forwards) == len(window.backwards) == 1:
            self._learn(window.forwards[0], "train")

    def skipped(self) -> None:
        """A GradScaler has not let the optimizer take its step."""
        self.note("patterns", SKIPPED)
        self.step_ended(time.perf_counter())

    def _is_trained(self, forward: Forward) -> bool:
        root = forward.root
        return bool(root.kind) or self.models.is_reached(root.model)

    def finish(self) -> None:
        """Send everything that is still held, and wait for the times that devices owe."""
        self.settle()
        if self._window.forwards:
            self._close_without_steps()
        if self._stepless:
            self.note("patterns", LEFT_OVER if self.steps else NO_STEPS)
        self._owed.send(0)
        self._tell_activity()

    def _close_without_steps(self) -> None:
        """No optimizer step ends this window: each backward does, and each forward that none follows."""
        window, self._window = self._window, _Window()
        trains = bool(window.backwards) and not self.steps
        self._manual = self._manual or trains
        self._stepless += 1
        if self._stepless == MANY and not self.steps:
            self.note("patterns", NO_STEPS)
        groups: dict[int, list[Forward]] = {}
        for forward in window.forwards:
            groups.setdefault(forward.after, []).append(forward)
        bounds = [*groups, len(window.backwards)]
        for forwards, begin, end in zip(groups.values(), bounds, bounds[1:], strict=False):
            backwards = window.backwards[begin:end]
            ended = backwards[-1].ended if backwards else forwards[-1].ended
            self._send("train" if backwards and trains else "forward", forwards, backwards, ended)

    def _send_eval(self, forward: Forward) -> None:
        self._send("eval", [forward], [], forward.ended)
        self._learn(forward, "eval")

    # -- usual steps -----------------------------------------------------------------------------

    def _learn(self, forward: Forward, phase: str) -> None:
        """A forward was all of its step, which is over. Where it will be the same record again, say so."""
        split = self._known.get(_key(phase, forward, True))
        clear = not self._window.forwards and not self._window.backwards and self._undecided is None
        if split is not None and clear and self.load is NOTHING_LOADED and self.on_host and forward.is_simple:
            self.learned(forward, phase, split)

    def known(self, forward: Forward, phase: str, split: int) -> Known | None:
        """What a usual step needs of such a forward; None where its rows do not follow from its input."""
        rows = forward.rows
        if forward.given is None or rows is None or rows != rows_of(forward.given, forward.dim):
            return None
        return Known(
            root=forward.root,
            is_bare=forward.root.ref() is forward.root.model.ref(),
            training=forward.training,
            learns=forward.learns,
            given=forward.given,
            returned=forward.returned,
            rows=rows,
            slots=forward.slots,
            dim=forward.dim,
            phase=phase,
            trains=phase == "train",
            splits=(split,),
            unloaded=self._is_unloaded,
            reductions=forward.synchronous,
        )

    def forward_of(self, known: Known, began: float) -> Forward:
        forward = Forward(
            known.root, began, began, known.slots, known.dim, known.given, known.rows, known.training, known.learns
        )
        forward.synchronous = known.reductions
        return forward

    def usual_step(self, step: Times) -> bool:
        """Send a step of which everything but its times is known; False where its rows must be looked at."""
        known, load = step.known, self.load
        still = 0 if load.rows else self._still + 1
        agrees = known.rows in self._recent and still <= STILL_STEPS
        unloaded = known.unloaded and (not self._recent or still > STILL_STEPS)
        if not agrees and not unloaded:
            return False
        self._still, self.load = still, NOTHING_LOADED
        self.forwards += 1
        phase, backward_ms, comm_ms = known.phase, None, None
        number = self._numbers[phase]
        self._numbers[phase] = number + 1
        if known.trains:
            self.steps += 1
            self.backwards += 1
            if known.reductions is None:
                backward_ms = (step.backward_ended - step.backward_began) * 1000.0
            elif step.reduced is not None:
                backward_ms, comm_ms = step.reduced.backward_ms, step.reduced.comm_ms
        if step.stepped - self._told > ACTIVITY_SECONDS:
            self._tell_activity()
        began = step.began if load.arrived is None else load.arrived
        self._emit(
            Step(
                step=number,
                epoch=0,
                phase=phase,
                splits=known.splits,
                at=time.time() - time.perf_counter() + step.stepped,
                step_ms=(step.stepped - began - load.late) * 1000.0,
                data_wait_ms=None if load.waited is None else load.waited * 1000.0,
                forward_ms=((step.ended - step.began) * 1000.0,),
                backward_ms=(backward_ms,),
                comm_ms=comm_ms,
            )
        )
        if known.trains:
            self._rate(known.rows, number, step.stepped)
        return True

    def number(self, phase: str) -> int:
        """Of the step that is to come."""
        return self._numbers[phase]

    @property
    def _is_unloaded(self) -> bool:
        return not self._recent or self._still > STILL_STEPS

    # -- records ---------------------------------------------------------------------------------

    def _send(self, phase: str, forwards: list[Forward], backwards: list[_Backward], ended: float) -> None:
        number = self._numbers[phase]
        self._numbers[phase] = number + 1
        if number == 0 or ended - self._told > ACTIVITY_SECONDS:
            self._tell_activity()
        for forward in forwards:
            forward.root.model.counted = True
        if len(forwards) == 1 and self.on_host and forwards[0].is_simple and forwards[0].synchronous is None:
            self._send_simple(number, phase, forwards[0], backwards, ended)
            return
        rows = _rows_by_model(forwards)
        trusted = self._check_rows(forwards, rows)
        slots = list(dict.fromkeys([slot for forward in forwards for slot in forward.slots])) or [0]
        step = Timed(number, 0, phase, _waited_ms(forwards), len(slots), at=time.time())
        step.step_ms = _step_ms(forwards, ended)
        for forward, trust in zip(forwards, trusted, strict=True):
            self._add_forward(step, phase, forward, slots, trust)
        if not forwards:
            self._add_unseen(step, phase)
        self._add_backward(step, forwards, backwards, slots)
        if self.memory is not None and sampled(number):
            step.memory = tuple([self.memory(self._devices[slot]) for slot in slots])
        self._owed.add(step)
        if phase == "train":
            self._rate(max(rows.values(), default=0), number, time.perf_counter())

    def _send_simple(self, number: int, phase: str, forward: Forward, backwards: list[_Backward], ended: float) -> None:
        """What `_send` does, at a third of the cost, for nearly every step: one forward, timed by the CPU's clock."""
        load, rows, span = forward.load, forward.rows, forward.span
        self._still = 0 if load.rows else self._still + 1
        if rows not in self._recent or self._still > STILL_STEPS:
            (trust,) = self._are_trusted([forward], {id(forward.root.model): rows or 0}, load.rows)
        else:
            trust = True
        step = Step(
            step=number,
            epoch=0,
            phase=phase,
            splits=(self._split(phase, forward, trust),),
            at=time.time(),
            step_ms=(ended - (forward.began if load.arrived is None else load.arrived) - load.late) * 1000.0,
            data_wait_ms=None if load.waited is None else load.waited * 1000.0,
            forward_ms=(None if span is None else span.ms(),),
            backward_ms=(sum([backward.span.ms() for backward in backwards]) if backwards else None,),
        )
        self._sink.emit(step)
        if phase == "train":
            self._rate(rows or 0, number, ended)

    def _split(self, phase: str, forward: Forward, trust: bool) -> int:
        """The id of a forward's split; one that is new is sent."""
        key = _key(phase, forward, trust)
        known = None if forward.scattered else self._known.get(key)
        if known is not None:
            return known
        devices = tuple([self._devices[slot] for slot in forward.slots])
        shards = [forward.shard(slot) for slot in forward.slots]
        count: Callable[[Shape | None], int | None] = forward_rows(forward) if trust else _none
        rows = forward.rows if trust else None
        number = self._splits.number(phase, self.models.name(forward.root), rows, devices, shards, count)
        self._explain(forward)
        if not forward.scattered and len(self._known) < MAX_INTERNED // 2:
            self._known[key] = number
        return number

    def _explain(self, forward: Forward) -> None:
        for where, reason in ABOUT["dp" if forward.scattered else forward.root.kind]:
            self.note(where, reason)
        if forward.scattered and forward.learns:
            self.note("per_device.backward_ms", BACKWARD_OF_SHARDS[self.context.kind])

    def _add_forward(self, step: Timed, phase: str, forward: Forward, slots: list[int], trust: bool) -> None:
        step.splits.append(self._split(phase, forward, trust))
        if forward.span is not None:
            step.forward[slots.index(forward.slots[0])].append(forward.span)
        for slot, shard in forward.shards.items():
            step.forward[slots.index(slot)] += shard.spans
        for name, spans in forward.primitives.items():
            step.primitives.setdefault(name, []).extend(spans)

    def _add_unseen(self, step: Timed, phase: str) -> None:
        self.note("patterns.rows", UNSEEN)
        nothing = Shard(None, None, [])
        step.splits.append(self._splits.number(phase, "", None, self._devices[:1], [nothing], _none))

    def _add_backward(self, step: Timed, forwards: list[Forward], backwards: list[_Backward], slots: list[int]) -> None:
        for forward in forwards:
            for slot, ms in enumerate(forward.graph_ms):
                if ms is not None:
                    place = slots.index(slot)
                    step.backward_ms[place] = (step.backward_ms[place] or 0.0) + ms
        if any(forward.scattered for forward in forwards):
            return
        synchronous = [forward.synchronous for forward in forwards if forward.synchronous is not None]
        if synchronous:
            self._add_ddp_times(step, synchronous, backwards)
        else:
            step.backward += [backward.span for backward in backwards]

    def _add_ddp_times(self, step: Timed, synchronous: list[Reductions], backwards: list[_Backward]) -> None:
        """A wrapper tells of its latest backward, so one that reduced twice in this step tells half of it."""
        times = [self.ddp_times(reductions) for reductions in dict.fromkeys(synchronous)]
        known = [each for each in times if each is not None]
        if len(known) == len(synchronous):
            step.backward += [backward.span for backward in backwards if backward.alone]
            step.backward_ms[0] = sum(each.backward_ms for each in known)
            step.comm_ms = sum(each.comm_ms for each in known)

    # -- rows ------------------------------------------------------------------------------------

    def _check_rows(self, forwards: list[Forward], rows: dict[int, int]) -> list[bool]:
        """Whether the rows of each forward agree with those of the batches that the loaders brought.

        A batch that is cut by hand agrees when its pieces add up. Where the loaders have been still for
        some steps, there is nothing to compare with.
        """
        loaded = sum([forward.load.rows for forward in forwards])
        self._still = 0 if loaded else self._still + 1
        return self._are_trusted(forwards, rows, loaded)

    def _are_trusted(self, forwards: list[Forward], rows: dict[int, int], loaded: int) -> list[bool]:
        if self._is_unloaded:
            return [self._agrees_with_itself(forward) for forward in forwards]
        return [self._agrees(forward, rows[id(forward.root.model)], loaded) for forward in forwards]

    def _agrees(self, forward: Forward, total: int, loaded: int) -> bool:
        if forward.rows is None or forward.rows in self._recent or total in self._recent or total == loaded:
            return True
        batches = " or ".join(map(str, sorted(set(self._recent))))
        self.note("patterns.rows", DISAGREES.format(forward.root.model.kind_of_module, forward.rows, batches))
        return False

    def _agrees_with_itself(self, forward: Forward) -> bool:
        """No DataLoader was there: outputs, too, have a row for each row, or some for each."""
        if forward.rows is None or forward.scattered:
            return True
        self.note("patterns.rows", UNCHECKED)
        if forward.returned and forward.rows and forward.returned[0] % forward.rows:
            self.note("patterns.rows", UNBATCHED.format(forward.root.model.kind_of_module))
            return False
        return True

    # -- the rest --------------------------------------------------------------------------------

    def note(self, where: str, reason: str) -> None:
        """Say once why a field of the report is null, or what its reader must know."""
        if (where, reason) not in self._noted and len(self._noted) < 64:
            self._noted.add((where, reason))
            self._sink.emit(Note(where, reason))

    def emit(self, record: AnyRecord) -> None:
        self._sink.emit(record)

    def use_clock(self, kind: str) -> None:
        """From now on take the times of these devices."""
        self.clock, self.on_host = CLOCKS[kind], kind == "cpu"

    def _rate(self, rows: int, number: int, now: float) -> None:
        self._rows_since += rows
        passed = now - self._rated
        if passed >= RATE_SECONDS and self.rank == 0 and self._rows_since:
            rate = self._rows_since * self.world_size / passed
            self._sink.emit(Metric(-1, "rows_per_second", number, rate, time.time()))
            self._rows_since, self._rated = 0, now

    def _tell_activity(self) -> None:
        self._told = time.perf_counter()
        self._sink.emit(Activity(self.forwards, self.backwards, self.steps, self.reductions))


def _key(phase: str, forward: Forward, trust: bool) -> tuple[Any, ...]:
    return phase, forward.root, forward.slots, forward.given, forward.returned, forward.rows, trust


def _none(shape: Shape | None) -> int | None:
    return None


def forward_rows(forward: Forward) -> Callable[[Shape | None], int | None]:
    """Counts the rows of a shard: those of its only device are those of the forward, however they were counted."""
    if not forward.scattered:
        return lambda shape: forward.rows
    return lambda shape: rows_of(shape, forward.dim)


def _rows_by_model(forwards: list[Forward]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for forward in forwards:
        model = id(forward.root.model)
        rows[model] = rows.get(model, 0) + (forward.rows or 0)
    return rows


def _waited_ms(forwards: list[Forward]) -> float | None:
    waited = [forward.load.waited for forward in forwards if forward.load.waited is not None]
    return sum(waited) * 1000.0 if waited else None


def _step_ms(forwards: list[Forward], ended: float) -> float:
    """From the first batch, or the first forward where there is none, to the end, without later waits for batches."""
    if not forwards:
        return 0.0
    first = forwards[0].load
    began = forwards[0].began if first.arrived is None else first.arrived
    later = first.late + sum([forward.load.waited or 0.0 for forward in forwards[1:]])
    return max(0.0, ended - began - later) * 1000.0
