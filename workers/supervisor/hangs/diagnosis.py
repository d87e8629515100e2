"""Which rank the others wait for: derived from what each rank has called, and from where each one is.

Ranks of a process group call the same collectives in the same order. So of the ranks that wait, those in the earliest
call are held up by the ranks whose newest call is an earlier one. Where the calls are not known, the stacks say who
waits and who does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jobs.protocol.records import CollectiveCall, GroupCalls
from workers.supervisor.ending.training_hints import SAME_COLLECTIVES
from workers.supervisor.hangs.stacks import RankPosition

#: Ranks that a sentence names one by one.
MAX_NAMED = 4
SAME_SHAPES = "Have all ranks pass tensors of the same shape to it, for example by padding."
LOOK_AT_NETWORK = (
    "No rank is missing, so the connection between them is: check the network between the nodes and its interfaces "
    "(NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)."
)


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of a run that hangs. `calls` is None where it did not answer. `why_absent` says why it cannot be in a
    collective: it has ended, or is stopped."""

    rank: int
    calls: Sequence[GroupCalls] | None = None
    position: RankPosition | None = None
    why_absent: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """`message` is for the job's error; `rank` is the one to look at first."""

    message: str
    rank: int
    advice: str = ""


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The earliest call of a group that ranks wait in: by rank, and the ranks that have not called it."""

    group: str
    calls: Mapping[int, CollectiveCall]
    missing: Sequence[int]

    @property
    def number(self) -> int:
        return next(iter(self.calls.values())).number

    @property
    def is_at_odds(self) -> bool:
        """Whether the ranks that wait wait for different things."""
        return len({(call.name, call.shapes) for call in self.calls.values()}) > 1


def find_hang(states: Sequence[RankState], root: str = "") -> Hang | None:
    """Why these ranks hang; None where it cannot be told. `root` is the directory that the program lies in."""
    meetings = sorted(_meetings(states), key=lambda one: (not one.missing, not one.is_at_odds, -len(one.calls)))
    by_rank = {state.rank: state for state in states}
    if meetings:
        return _describe_meeting(meetings[0], by_rank, root)
    return _describe_positions(states, root)


# -- by what they have called ----------------------------------------------------------------------


def _meetings(states: Sequence[RankState]) -> Iterator[_Meeting]:
    known = {state.rank: {one.group: one for one in state.calls or ()} for state in states}
    for group in sorted({name for groups in known.values() for name in groups}):
        pending = {rank: one[group].pending for rank, one in known.items() if group in one}
        waiting = {rank: call for rank, call in pending.items() if call is not None}
        if not waiting:
            continue
        number = min(call.number for call in waiting.values())
        first = {rank: call for rank, call in waiting.items() if call.number == number}
        members = next((one[group].ranks for one in known.values() if group in one and one[group].ranks), None)
        missing = [rank for rank in sorted(members or known) if rank in known and _newest(known[rank], group) < number]
        yield _Meeting(group, first, missing)


def _newest(calls: Mapping[str, GroupCalls], group: str) -> int:
    return calls[group].newest.number if group in calls else -1


def _describe_meeting(meeting: _Meeting, states: Mapping[int, RankState], root: str) -> Hang:
    waiting = sorted(meeting.calls)
    if meeting.is_at_odds and not meeting.missing:
        return _describe_odds(meeting, states, root)
    call = meeting.calls[waiting[0]]
    where = _where(states[waiting[0]], root)
    begin = f"{name_ranks(waiting)} {_verb(waiting, 'wait')} in {call.name}, collective number {call.number}{where}"
    if not meeting.missing:
        return Hang(f"{begin}, and it does not end", waiting[0], LOOK_AT_NETWORK)
    absent = "; ".join(filter(None, (_describe_absent(states[rank], root) for rank in meeting.missing[:MAX_NAMED])))
    has = "has" if len(meeting.missing) == 1 else "have"
    message = f"{begin}, which {name_ranks(meeting.missing)} {has} not called" + (f": {absent}" if absent else "")
    return Hang(message, meeting.missing[0], SAME_COLLECTIVES)


def _describe_odds(meeting: _Meeting, states: Mapping[int, RankState], root: str) -> Hang:
    ranks = sorted(meeting.calls)
    names = {call.name for call in meeting.calls.values()}
    told = [f"rank {rank} {_describe_call(meeting.calls[rank])}{_where(states[rank], root)}" for rank in ranks]
    what = "different collectives" if len(names) > 1 else "tensors of different shapes"
    shown = ", ".join(told[:MAX_NAMED]) + (", ..." if len(told) > MAX_NAMED else "")
    message = f"the ranks call {what} as number {meeting.number}: {shown}"
    return Hang(message, ranks[0], SAME_COLLECTIVES if len(names) > 1 else SAME_SHAPES)


def _describe_call(call: CollectiveCall) -> str:
    return f"{call.name} of {', '.join(str(list(shape)) for shape in call.shapes)}" if call.shapes else call.name


def _where(state: RankState, root: str) -> str:
    line = state.position.describe(root) if state.position is not None else ""
    return f" ({line})" if line else ""


def _describe_absent(state: RankState, root: str) -> str:
    if state.why_absent:
        return f"rank {state.rank} {state.why_absent}"
    line = state.position.describe(root) if state.position is not None else ""
    return f"rank {state.rank} is at {line}" if line else ""


# -- by where they are -----------------------------------------------------------------------------


def _describe_positions(states: Sequence[RankState], root: str) -> Hang | None:
    """Without a collective that is known to be pending: those that wait, then the others."""
    known = [state for state in states if state.why_absent or (state.position is not None and _where(state, root))]
    if not known:
        return None
    waiting = [state for state in known if not state.why_absent and state.position and state.position.waits_in]
    others = [state for state in known if state not in waiting]
    told = [f"rank {state.rank} waits in {_waits_in(state)}{_where(state, root)}" for state in waiting[:MAX_NAMED]]
    told += [_describe_absent(state, root) for state in others[:MAX_NAMED]]
    first = (others or waiting)[0].rank
    return Hang("; ".join(told), first, SAME_COLLECTIVES if waiting and others else "")


def _waits_in(state: RankState) -> str:
    return state.position.waits_in if state.position is not None else ""


# -- words -----------------------------------------------------------------------------------------


def name_ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MAX_NAMED:
        return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:MAX_NAMED]))}, ...)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _verb(ranks: Sequence[int], plural: str) -> str:
    return f"{plural}s" if len(ranks) == 1 else plural
