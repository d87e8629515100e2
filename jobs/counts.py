"""How many jobs there are, for those who watch the service."""

from collections.abc import Sequence

from jobs.state import State
from jobs.store import Call


def by_state(tenant: str) -> Call[dict[State, int]]:
    """Jobs of a tenant in every state."""

    def parse(reply: Sequence[int]) -> dict[State, int]:
        return dict(zip(State, reply, strict=True))

    return Call("count_jobs", (tenant, *State), parse)
