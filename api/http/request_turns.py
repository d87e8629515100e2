"""Turns of tenants: while several ask, each has a few requests in progress, and the others wait in its own queue.

An event loop goes round once for every few milliseconds of what all requests in hand have to do, and each request needs
several rounds. So it is how many the *others* have in hand that makes one slow, whatever they ask for. A tenant that is
alone has all turns: nothing is gained by having it wait.

A turn is for what takes the processor. Who waits for something else gives it back: for a change, for the next event;
and for anything, when it has had it for a second (a body that comes over a slow line).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import MutableMapping
from typing import Any

from shardyard.contract.errors import RateLimited

#: Requests of one tenant in hand at a time, while another one asks too.
TURNS = 2
#: How long a tenant counts as asking after its last request.
ACTIVE_SECONDS = 5.0
#: The longest that a turn lasts, and that is waited for one.
TURN_SECONDS, WAIT_SECONDS = 1.0, 30.0
#: Requests of one tenant that wait for a turn.
MAX_WAITING = 1024
_TURN = "shardyard.turn"


class RequestTurns:
    """One for an event loop."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._newest, self._newest_at = "", 0.0
        self._other_at = 0.0  # when another tenant than the newest one asked last
        self._begun: dict[Turn, float] = {}  # the turns that are held, the oldest first
        self._timer: asyncio.TimerHandle | None = None  # one for all: a timer of its own costs as much as the turn

    async def take_turn(self, tenant: str, scope: MutableMapping[str, Any]) -> None:
        """Wait for a turn for the request with this scope; `end_turn` gives it back.

        Raises:
            RateLimited: very many of the tenant's requests wait, or this one has waited for long.
        """
        is_alone = self._note_tenant(tenant)
        if not is_alone and self._held[tenant] >= TURNS:
            await self._wait_for_turn(tenant)
        else:
            self._held[tenant] += 1
        scope[_TURN] = turn = Turn(self, tenant)
        self._begun[turn] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self._end_overdue)

    def give_back(self, turn: "Turn", tenant: str) -> None:
        """A turn is over."""
        self._begun.pop(turn, None)
        self._pass_on(tenant)

    def _end_overdue(self) -> None:
        """End the turns that have lasted for `TURN_SECONDS`, and look again when the next one will have."""
        self._timer, now = None, time.monotonic()
        for turn, begun in list(self._begun.items()):
            if now - begun < TURN_SECONDS:
                self._timer = asyncio.get_running_loop().call_later(begun + TURN_SECONDS - now, self._end_overdue)
                return
            turn.end()

    def _pass_on(self, tenant: str) -> None:
        """The next of the tenant's requests has its turn, unless more are in hand than there are turns: as the tenant
        was alone."""
        queue = self._waiting.get(tenant)
        while queue and self._held[tenant] <= TURNS:
            following = queue.popleft()
            if not following.done():
                following.set_result(None)
                return
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]

    async def _wait_for_turn(self, tenant: str) -> None:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= MAX_WAITING:
            raise _too_many()
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._pass_on(tenant)  # it came in the same moment
            if isinstance(error, TimeoutError):
                raise _too_many() from None
            raise
        finally:
            if not queue and self._waiting.get(tenant) is queue:
                del self._waiting[tenant]

    def _note_tenant(self, tenant: str) -> bool:
        """Whether no other tenant has asked lately."""
        now = time.monotonic()
        if tenant != self._newest:
            self._newest, self._other_at = tenant, self._newest_at
        self._newest_at = now
        return now - self._other_at > ACTIVE_SECONDS


class Turn:
    """Of one request."""

    __slots__ = ("_tenant", "_turns")

    def __init__(self, turns: RequestTurns, tenant: str) -> None:
        self._turns: RequestTurns | None = turns
        self._tenant = tenant

    def end(self) -> None:
        """Give it back, if that was not done before."""
        if self._turns is not None:
            turns, self._turns = self._turns, None
            turns.give_back(self, self._tenant)


def end_turn(scope: MutableMapping[str, Any]) -> None:
    """The request with this scope is answered, or waits for something else than the processor."""
    turn: Turn | None = scope.get(_TURN)
    if turn is not None:
        turn.end()


def _too_many() -> RateLimited:
    return RateLimited("very many requests from your tenant are already waiting; try again in a moment", retry_after=1)
