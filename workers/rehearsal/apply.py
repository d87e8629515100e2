"""Everything that a rehearsal replaces in torch, in order. Imported when torch has been."""

from workers.rehearsal import cuda, data_parallel, distributed, precision, refusals, tensors
from workers.rehearsal.devices import Devices


def act(count: int, where: str) -> None:
    """Have torch answer as if it had `count` devices. `where` names this process in messages."""
    devices = Devices(count, where)
    for part in (tensors, cuda, precision, data_parallel, distributed, refusals):
        part.act(devices)
