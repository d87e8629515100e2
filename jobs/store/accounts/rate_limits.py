"""The buckets of requests that tokens and tenants share among all API processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.store.call import Call, call_function


@dataclass(frozen=True, slots=True)
class TakenRequests:
    """`left` in the scarcer bucket; `wait_ms` until there is one again, where none was taken."""

    count: int
    left: int
    wait_ms: int


def take_requests(tenant: str, token: str, count: int, *, of_token: int, of_tenant: int) -> Call[TakenRequests]:
    """Take at most `count` requests of a token. `of_token` and `of_tenant` are requests a minute; 0: no limit."""

    def decode(reply: Sequence[int]) -> TakenRequests:
        return TakenRequests(*map(int, reply))

    return call_function(
        "take_requests", decode, tenant=tenant, token=token, wanted=count, of_token=of_token, of_tenant=of_tenant
    )
