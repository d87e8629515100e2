"""Slots for what a process can do a limited number of times at once: some for each tenant alone, the others for all."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: The tenant whose request is served, as authentication has found it; "" in what the service does by itself.
current_tenant: ContextVar[str] = ContextVar("current_tenant", default="")


class TenantSlots:
    """`shared` slots are for whoever comes first. A tenant may hold `of_tenant`, and has its first `own` even when the
    shared ones are taken, so that a few tenants cannot shut out the others; `reserve` bounds all of these together."""

    def __init__(self, shared: int, of_tenant: int, own: int, reserve: int) -> None:
        self._shared = shared
        self._of_tenant = of_tenant
        self._own = own
        self._reserve = reserve
        self._held: Counter[str] = Counter()

    @property
    def held_count(self) -> int:
        return self._held.total()

    def is_tenant_full(self, tenant: str) -> bool:
        """Whether the tenant holds all that it may."""
        return self._held[tenant] >= self._of_tenant

    def has_room(self, tenant: str) -> bool:
        held = self._held[tenant]
        most = self._shared if held >= self._own else self._shared + self._reserve
        return held < self._of_tenant and self.held_count < most

    @contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """One more; the caller has asked `has_room`."""
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
