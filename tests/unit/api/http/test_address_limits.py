"""How often an address may begin what needs no token."""

import pytest

from api.http import address_limits
from api.http.address_limits import AddressLimiter
from shardyard.contract.errors import RateLimited


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def count(limiter: AddressLimiter, address: str = "192.0.2.1") -> int | None:
    """After how many seconds to come back; None: the request is served."""
    try:
        limiter.count_request(address)
    except RateLimited as error:
        return error.retry_after
    return None


def test_so_many_come_at_once_and_then_one_in_a_while() -> None:
    clock = Clock()
    limiter = AddressLimiter(3, 10, clock)
    assert [count(limiter) for _ in range(5)] == [None, None, None, 10, 10]
    clock.now += 4
    assert count(limiter) == 6
    clock.now += 6
    assert [count(limiter), count(limiter)] == [None, 10]
    clock.now += 1000
    assert [count(limiter) for _ in range(4)] == [None, None, None, 10]


def test_each_address_has_its_own_and_a_host_has_one_network_of_ipv6() -> None:
    limiter = AddressLimiter(1, 10, Clock())
    assert count(limiter, "192.0.2.1") is None
    assert count(limiter, "192.0.2.2") is None
    assert count(limiter, "2001:db8::1") is None
    assert count(limiter, "2001:db8::ffff:1") == 10
    assert count(limiter, "2001:db8:0:1::1") is None
    assert count(limiter, "fe80::1%eth0") is None
    assert [count(limiter, ""), count(limiter, "no address")] == [None, 10]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_limits, "MAX_ADDRESSES", 2)
    limiter = AddressLimiter(1, 10, Clock())
    for last in (1, 2, 3):
        assert count(limiter, f"192.0.2.{last}") is None
    assert count(limiter, "192.0.2.3") == 10
    assert count(limiter, "192.0.2.1") is None  # forgotten
