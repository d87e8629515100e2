"""What was seen of a script: which processes worked, what they did about devices, and steps never finished."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from jobs.model.spec import JobSpec
from shardyard.contract.report import Pattern
from workers.supervisor.report.process_state import ProcessState

#: A step that was begun so long before the end, and not finished, is worth a warning.
UNFINISHED_SECONDS = 10.0
#: ... if it has lasted so many times as long as the step before: a program of slow steps that comes to its time limit
#: is ended in the middle of one.
UNUSUAL = 3.0
#: To join a process group takes less, unless a rank is missing.
JOIN_SECONDS = 5.0
MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class ScriptObservations:
    """All that was seen of a script. `divided` has the splits of single forwards, by module, in the main phase;
    `numbers_only` has those in training where each device returned one number. `last_line` is what it printed last, and
    `blind` says where nobody could look."""

    spec: JobSpec
    virtual: bool
    phase: str
    patterns: Sequence[Pattern]
    divided: Mapping[str, Set[tuple[int, ...]]]
    numbers_only: Mapping[str, Set[tuple[int, ...]]]
    processes: Sequence[ProcessState]
    final: bool
    succeeded: bool
    last_line: str
    blind: str
    now: float | None
    comm_ms: float | None = None  # of a step, that no work hides, without the wait for the slowest device
    device_ms: float = 0.0  # how long all devices together have run

    @property
    def devices(self) -> int:
        return self.spec.all_devices

    @property
    def workers(self) -> list[ProcessState]:
        """Processes that did anything with a model."""
        return [process for process in self.processes if process.worked]

    @property
    def trainers(self) -> list[ProcessState]:
        """Processes that trained: one for each rank, the latest one where they followed each other."""
        return list({process.rank: process for process in self.processes if process.trained}.values())


def name_modules(modules: Sequence[str]) -> str:
    """Modules in a sentence; the script's outermost one has no name."""
    return _join_names([module or "the model" for module in modules])


def describe_run(processes: Iterable[ProcessState]) -> str:
    """What the script itself did about devices: "the script wrapped Net in DataParallel, ..."."""
    listed = list(processes)
    wrapped: dict[str, set[str]] = {}
    for kind, inside in (one for process in listed for one in process.wrapped):
        wrapped.setdefault(kind, set()).add(inside or "a module")
    groups = [process.group for process in listed if process.group is not None]
    what = " and ".join(f"wrapped {_join_names(sorted(inside))} in {kind}" for kind, inside in sorted(wrapped.items()))
    largest = max(groups, key=lambda group: group.world_size, default=None)
    if largest is None:
        how = "made no process group"
    else:
        # One that was made without naming a backend is "undefined" to torch.
        backend = "" if largest.backend == "undefined" else f" ({largest.backend})"
        how = f"made a process group of {largest.world_size}{backend}"
    children = sum(process.source != 0 and process.worked for process in listed)
    who = f"; the work was done by {count_of(children, 'process', 'processes')} that it started" if children else ""
    return f"the script {what or 'wrapped no module'} and {how}, as far as the probe saw{who}"


def remarks_on_rows(seen: ScriptObservations) -> Iterator[str]:
    """Where a DataLoader gave more batches than the model received: forward passes are what counts."""
    for process in seen.trainers:
        loaded = list(process.passes.batches.values())
        if len(loaded) == 1 and loaded[0] > process.trained_forwards:
            yield (
                f"{process.name} took {count_of(loaded[0], 'batch', 'batches')} from its DataLoader, but the model "
                f"received {process.trained_forwards:,} in training; rows are counted where the model receives them"
            )


@dataclass(frozen=True, slots=True)
class UnfinishedStep:
    """A step that some ranks had begun and not finished when they ended without a word: for how many seconds, where
    that is known, how long the step before took, and which ranks were behind and had not even begun it."""

    step: int
    phase: str
    ranks: Sequence[int]
    behind: Sequence[int]
    seconds: float | None
    usual_seconds: float = 0.0

    @property
    def long(self) -> bool:
        least = max(UNFINISHED_SECONDS, UNUSUAL * self.usual_seconds)
        return self.seconds is not None and self.seconds >= least

    def __str__(self) -> str:
        later = f", {self.seconds:,.0f} s later" if self.seconds is not None else ""
        behind = f"; {name_ranks(self.behind)} had not started it" if self.behind else ""
        ended = "it" if len(self.ranks) == 1 else "they"
        return (
            f"{name_ranks(self.ranks)} had started step {self.step:,} ({self.phase}) but not finished it "
            f"when {ended} ended{later}{behind}"
        )


def find_unfinished_steps(seen: ScriptObservations) -> list[UnfinishedStep]:
    """Steps that were never finished, the earliest first. A process that has reported its outcome has none."""
    if not seen.final:
        return []
    told = {process.origin for process in seen.processes if process.outcome is not None}
    silent = [process for process in seen.processes if process.origin not in told]
    steps: dict[tuple[int, str], list[ProcessState]] = {}
    for process in silent:
        if process.unfinished is not None:
            steps.setdefault((process.unfinished.step, process.unfinished.phase), []).append(process)
    waiting = [process for process in silent if process.trained and process.unfinished is None]
    return [
        UnfinishedStep(
            step,
            phase,
            ranks=sorted({process.rank for process in stuck}),
            behind=sorted({other.rank for other in waiting if other.done.get(phase, 0) <= step}),
            seconds=_longest_seconds(seen.now, stuck),
            usual_seconds=max(process.last_step_seconds for process in stuck),
        )
        for (step, phase), stuck in sorted(steps.items())
    ]


@dataclass(frozen=True, slots=True)
class UnmadeGroup:
    """A process group that some ranks still waited for when they were ended, and ranks that had not called it."""

    ranks: Sequence[int]
    missing: Sequence[int]
    seconds: float


def find_unmade_group(seen: ScriptObservations) -> UnmadeGroup | None:
    """The ranks' own processes alone count, unless they have none that waits: a parent does not join."""
    told = {process.origin for process in seen.processes if process.outcome is not None}
    waiting = [
        process for process in seen.processes if process.joining_since is not None and process.origin not in told
    ]
    since = [process.joining_since for process in waiting if process.joining_since is not None]
    if not seen.final or seen.now is None or not since or seen.now - min(since) < JOIN_SECONDS:
        return None
    ranks = sorted({process.rank for process in waiting})
    others = [process.rank for process in seen.processes if process.source == 0 and process.group is None]
    return UnmadeGroup(ranks, sorted({*others} - {*ranks}), seen.now - min(since))


def _longest_seconds(now: float | None, stuck: Sequence[ProcessState]) -> float | None:
    begun = [process.began.at for process in stuck if process.began is not None]
    return max(0.0, now - min(begun)) if now is not None and begun else None


# -- words -----------------------------------------------------------------------------------------


def count_of(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _join_names(parts: Sequence[object]) -> str:
    return ", ".join(map(str, parts[:MAX_NAMES])) + (", ..." if len(parts) > MAX_NAMES else "")


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks for a sentence."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_join_names(ranks)}"
