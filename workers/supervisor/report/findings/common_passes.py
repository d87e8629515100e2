"""The same pass over a DataLoader on several ranks: whether these read the same rows, or each a part of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.protocol.probe_records import Loaded
from workers.supervisor.report.process_state import ProcessState


@dataclass(frozen=True, slots=True)
class CommonPass:
    """The same pass over the same DataLoader on several ranks, by rank."""

    loads: Mapping[int, Loaded]
    contents: Mapping[int, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        return sum(one.rows or 0 for one in self.loads.values())

    @property
    def distinct(self) -> int:
        """Rows that are not the same on two ranks, where the ranks read either the same or different ones."""
        different = {(one.digest, one.rows) for one in self.loads.values()}
        return sum(rows or 0 for _, rows in different)

    @property
    def sharded(self) -> bool:
        """Whether each rank has rows of its own: a part that a sampler gave it, or one that the script made."""
        places = {one.replica for one in self.loads.values() if (one.replicas or 0) > 1}
        digests = {one.digest for one in self.loads.values()}
        apart = len(digests) == len(self.loads) or self.holds_same is False
        return len(places) == len(self.loads) or (apart and None not in digests)

    @property
    def holds_same(self) -> bool | None:
        """Whether rows of the same index are the same rows on the first ranks that have equal indices; `None` where
        that is not known: too few were seen on both, or only a part of each row is the same."""
        groups: dict[int | None, list[int]] = {}
        for rank, load in self.loads.items():
            groups.setdefault(load.digest, []).append(rank)
        pairs = [(ranks[0], other) for ranks in groups.values() for other in ranks[1:]]
        answers = {_holds_same(self.contents.get(one, {}), self.contents.get(other, {})) for one, other in pairs}
        return answers.pop() if len(answers) == 1 else None


def _holds_same(one: Mapping[int, tuple[int, ...]], other: Mapping[int, tuple[int, ...]]) -> bool | None:
    """Compares checksums of rows by index, a tensor of the batch at a time. One that is the same in all rows (a label)
    says nothing."""
    shared = [(one[index], other[index]) for index in one.keys() & other.keys() if len(one[index]) == len(other[index])]
    columns = zip(*(zip(*pair, strict=True) for pair in shared), strict=False)
    told = [column for column in map(list, columns) if len({sum_ for pair in column for sum_ in pair}) > 1]
    same = {all(first == second for first, second in column) for column in told}
    return same.pop() if len(same) == 1 else None


def list_common_passes(processes: Sequence[ProcessState]) -> list[CommonPass]:
    """The passes with training that all ranks have made, the latest first. Passes are told by their order: one rank may
    have made more loaders than another, for evaluation or for what only it does."""
    if len(processes) < 2:
        return []
    first, *others = (process.passes.latest for process in processes)
    shared = [key for key in first if key[0] and all(key in latest for latest in others)]
    return [
        CommonPass(
            {process.rank: process.passes.latest[key] for process in processes},
            {process.rank: process.passes.contents_of(process.passes.latest[key]) for process in processes},
        )
        for key in reversed(shared)
    ]


def find_common_pass(trainers: Sequence[ProcessState]) -> CommonPass | None:
    """The latest pass that all ranks have trained on, a complete one if there is any."""
    trained = [one for one in list_common_passes(trainers) if all(load.rows for load in one.loads.values())]
    complete = [one for one in trained if all(load.complete for load in one.loads.values())]
    return next(iter(complete or trained), None)


def is_duplicated(shared: CommonPass | None) -> bool:
    if shared is None or any(load.digest is None or (load.replicas or 0) > 1 for load in shared.loads.values()):
        return False
    return shared.distinct < shared.processed and shared.holds_same is not False


def are_grouped(processes: Sequence[ProcessState]) -> bool:
    """Whether they are in a process group."""
    return any(process.group is not None and process.group.world_size > 1 for process in processes)
