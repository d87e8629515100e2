"""How many requests tokens and tenants may send.

The buckets are in Redis, for all API processes together. A process takes a second's worth at a time, at most a
hundred, and counts them down by itself: most requests, status polls above all, cost a look-up in a dictionary. It asks
for more before it has none left, so no request waits for that. Where Redis does not answer, nobody is refused for it.
"""

import asyncio
import math
import time
from collections import OrderedDict

from jobs.store.accounts import rate_limits
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import RateLimited, Unavailable

#: Requests that a process takes at a time.
MAX_TAKEN = 100
#: Tokens whose requests are counted here. One that was forgotten begins with a second's worth again.
MAX_TOKENS = 4096
WINDOW_SECONDS = 60

Headers = tuple[tuple[bytes, bytes], ...]


class TokenAllowance:
    """What one token may still send to this process; the header fields of its answers say about how much."""

    __slots__ = ("blocked_until", "headers", "left", "refill", "tenant", "token")

    def __init__(self, tenant: str, token: str, left: int, headers: Headers) -> None:
        self.tenant = tenant
        self.token = token
        self.left = left
        self.headers = headers
        self.blocked_until = 0.0
        self.refill: asyncio.Task[None] | None = None


class RateLimiter:
    """`of_token` and `of_tenant`: requests a minute; 0: no limit. As many may come at once."""

    def __init__(self, store: AsyncRedisStore, of_token: int, of_tenant: int) -> None:
        self._store = store
        self._of_token = of_token
        self._of_tenant = of_tenant
        limits = [limit for limit in (of_token, of_tenant) if limit]
        self.is_limited = bool(limits)
        self._taken = max(1, min(MAX_TAKEN, *(limit // WINDOW_SECONDS for limit in limits))) if limits else 0
        named = {"token": of_token, "tenant": of_tenant}
        self._policy = ", ".join(f'"{name}";q={limit};w={WINDOW_SECONDS}' for name, limit in named.items() if limit)
        self._scarcest = min(limits, default=0)
        self._allowances: OrderedDict[str, TokenAllowance] = OrderedDict()

    def count_locally(self, token: str) -> Headers | None:
        """As `count_request`, where nothing has to be asked; else None, and the request is not counted."""
        allowance = self._allowances.get(token)
        if allowance is None or allowance.left <= self._taken // 2:
            return None
        allowance.left -= 1
        return allowance.headers

    async def count_request(self, tenant: str, token: str) -> Headers:
        """The header fields about the limits for the answer to this request.

        Raises:
            RateLimited: there were too many lately.
        """
        allowance = self._allowances.get(token) or self._add_allowance(tenant, token)
        if allowance.left <= self._taken // 2:
            await self._refill(allowance)
        allowance.left -= 1
        return allowance.headers

    def _add_allowance(self, tenant: str, token: str) -> TokenAllowance:
        headers = self._headers(self._scarcest, 1)
        allowance = self._allowances[token] = TokenAllowance(tenant, token, self._taken, headers)
        if len(self._allowances) > MAX_TOKENS:
            self._allowances.popitem(last=False)
        return allowance

    async def _refill(self, allowance: TokenAllowance) -> None:
        """Ask for more, and wait for it only where nothing is left."""
        while True:
            if allowance.refill is None and allowance.blocked_until <= time.monotonic():
                allowance.refill = asyncio.create_task(self._take_more(allowance))
            if allowance.left > 0:
                return
            if allowance.refill is None:
                raise self._too_many(allowance)
            await asyncio.shield(allowance.refill)

    async def _take_more(self, allowance: TokenAllowance) -> None:
        call = rate_limits.take_requests(
            allowance.tenant, allowance.token, self._taken, of_token=self._of_token, of_tenant=self._of_tenant
        )
        try:
            taken = await self._store.run(call)
        except Unavailable:
            allowance.left += self._taken
            return
        finally:
            allowance.refill = None
        allowance.left += taken.count
        if not taken.count:
            allowance.blocked_until = time.monotonic() + taken.wait_ms / 1000
        allowance.headers = self._headers(taken.left + allowance.left, max(1, math.ceil(taken.wait_ms / 1000)))

    def _headers(self, left: int, seconds: int) -> Headers:
        name = "token" if self._scarcest == self._of_token else "tenant"
        remaining = f'"{name}";r={left};t={seconds}'
        return (b"ratelimit-policy", self._policy.encode()), (b"ratelimit", remaining.encode())

    def _too_many(self, allowance: TokenAllowance) -> RateLimited:
        seconds = max(1, math.ceil(allowance.blocked_until - time.monotonic()))
        limits = f"{self._of_token or 'any number of'} requests a minute per token and "
        limits += f"{self._of_tenant or 'any number'} per tenant"
        return RateLimited(f"too many requests: {limits} are answered; try again in {seconds} s", retry_after=seconds)
