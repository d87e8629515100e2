"""Makes the scripts of a node wait with their next checkpoint while too much is waiting to be carried from it."""

from collections.abc import Callable

from workers.rank.handle import RankHandle
from workers.supervisor.carriage import AttemptCarriage

FULL = "more than SHARDYARD_CARRY_BYTES is waiting to be carried from here: job.checkpoint() waits"
ROOM = "there is room again: job.checkpoint() continues"


class SaveHold:
    """Belongs to the loop of a supervisor whose ranks run a script; `rank` is any of them on this node. `say`
    writes to the job's log."""

    def __init__(self, carriage: AttemptCarriage, rank: RankHandle, say: Callable[[str], None]) -> None:
        self._carriage = carriage
        self._rank = rank
        self._say = say
        self.is_held = False

    def on_tick(self) -> None:
        if self._carriage.has_room != self.is_held:
            return
        self.is_held = not self.is_held
        self._rank.hold_saves(self.is_held)
        self._say(FULL if self.is_held else ROOM)
