"""Limits how often an address may request what needs no token but costs others something: a bucket per address."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from jobs.support.bounded_cache import keep_newest
from shardyard.contract.errors import RateLimited

#: Addresses that are remembered; one that was forgotten begins anew.
MAX_ADDRESSES = 4096
#: What one host has of the addresses of IPv6.
_IPV6_PREFIX = 64


class AddressLimiter:
    """`burst` requests at once, and one more every `seconds`. Belongs to one process, used by its event loop alone."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._seconds = seconds
        self._clock = clock
        #: When the bucket of an address is full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def count_request(self, address: str) -> None:
        """Raises:
        RateLimited: too many have come from there lately.
        """
        network, now = _network_of(address), self._clock()
        full_at = max(now, self._full_at.get(network, now)) + self._seconds
        wait = full_at - now - self._burst * self._seconds
        if wait > 0:
            seconds = math.ceil(wait)
            raise RateLimited(
                f"too many sign-ins have begun from your address; try again in {seconds} s", retry_after=seconds
            )
        keep_newest(self._full_at, network, full_at, MAX_ADDRESSES)


def _network_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""  # a socket without an address
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
