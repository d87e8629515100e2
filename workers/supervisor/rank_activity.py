"""What each rank has done so far, from its records."""

from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import Began

#: Phases whose steps are the job's progress.
MAIN_PHASES = ("train", "forward")


class RankActivity:
    """`first_step` is how many steps were done before the attempt began."""

    def __init__(self, world_size: int, first_step: int) -> None:
        self._next_steps = [first_step] * world_size
        self._worked: set[int] = set()
        self.has_stepped = False  # whether any rank, or a process that descends from one, has

    def add_record(self, rank: int, record: StepBatch | SingleRecord) -> bool:
        """Take a record of a rank, or of a process that descends from it; True at the first step of all ranks."""
        if isinstance(record, Began):
            self._worked.add(rank)
        if not isinstance(record, StepBatch):
            return False
        last = next((step for step in reversed(record.steps) if step.phase in MAIN_PHASES), None)
        if last is None:
            return False
        self._next_steps[rank] = last.step + 1
        self._worked.add(rank)
        is_first, self.has_stepped = not self.has_stepped, True
        return is_first

    def next_step(self, rank: int) -> int:
        """The step after the last one that a rank has reported: what it prints belongs to that."""
        return self._next_steps[rank]

    def has_worked(self, rank: int) -> bool:
        """Whether a rank, or a process that descends from it, has begun a forward or taken a step."""
        return rank in self._worked
