"""Where webhooks may go: to public addresses, and to the networks that the operator allows.

A name is looked up once for each delivery. All its addresses must be allowed, and the connection goes to one of those
that were checked (`api.webhooks.outgoing`), whatever the name resolves to by then.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from api.schemas.webhook_requests import MAX_URL_LENGTH
from shardyard.contract.errors import FieldError, InvalidRequest

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Looks up the addresses of a host. Raises OSError.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

#: A name in its ASCII form, or an address.
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
#: Look-ups at a time. They have threads of their own: one that hangs must not hold up the API's other work.
LOOKUP_THREADS = 4
#: Addresses that lead to others, or that Python takes for public though they are not: IPv4-compatible ones, NAT64,
#: 6to4 and its relays, Teredo, site-local ones.
_NEVER_PUBLIC: tuple[IPNetwork, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "::/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "fec0::/10",
        "192.88.99.0/24",
    )
)


class RefusedTarget(Exception):
    """A webhook must not go there; the message says why, and tells nothing of the service's network."""


class AddressRules:
    """`networks` are those that the operator allows beside public addresses."""

    def __init__(self, networks: Sequence[IPNetwork] = ()) -> None:
        self._networks = tuple(networks)

    def check_url(self, text: str) -> httpx.URL:
        """The address of a webhook, as far as it can be checked without looking up its name.

        Raises:
            InvalidRequest: a webhook cannot have it.
        """
        try:
            return self.parse_target(text)
        except RefusedTarget as error:
            raise InvalidRequest("the webhook is not valid", fields=(FieldError("url", str(error)),)) from None

    def parse_target(self, text: str) -> httpx.URL:
        """As `check_url`. Raises RefusedTarget."""
        if len(text) > MAX_URL_LENGTH:
            raise RefusedTarget(f"at most {MAX_URL_LENGTH} characters")
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError):
            raise RefusedTarget("send a whole URL, for example https://example.com/hooks/shardyard") from None
        if url.port is not None and not 1 <= url.port <= 65_535:
            raise RefusedTarget("its port must be from 1 to 65535")
        if url.scheme not in ("https", "http") or not url.host:
            raise RefusedTarget("send a whole URL that begins with https://")
        if url.userinfo or "@" in url.netloc.decode("ascii", "replace"):
            raise RefusedTarget("leave out user and password: deliveries are signed instead")
        host = url.raw_host.decode("ascii", "replace")
        if _HOST.fullmatch(host) is None:
            raise RefusedTarget("its host is neither a name nor an address")
        if url.fragment:
            raise RefusedTarget("leave out what follows #: it is not sent")
        if url.scheme == "http" and not self._networks:
            raise RefusedTarget("use https:// (the operator can allow http:// in networks of their own)")
        numeric = _numeric_addresses(host)
        if numeric:
            self.check_addresses(url.scheme, numeric)
        return url

    def check_addresses(self, scheme: str, addresses: Sequence[str]) -> None:
        """Raises:
        RefusedTarget: one of the addresses is not public, and in no network that the operator allows; or `scheme` is
            http, and one is public.
        """
        if not addresses:
            raise RefusedTarget("its host has no address")
        for text in addresses:
            address = _plain_address(text)
            allowed = any(address in network for network in self._networks if network.version == address.version)
            if not allowed and not is_public(address):
                raise RefusedTarget(
                    "its host has an address that is not public (the operator can allow networks with "
                    "SHARDYARD_WEBHOOK_NETWORKS)"
                )
            if not allowed and scheme != "https":
                raise RefusedTarget("use https:// outside of the networks that the operator allows")


def is_public(address: IPAddress) -> bool:
    """Whether an address is one of the internet's, and leads to itself only."""
    if address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback:
        return False
    return address.is_global and not any(
        address in network for network in _NEVER_PUBLIC if network.version == address.version
    )


class HostResolver:
    """Looks names up with the system's resolver."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="webhook-lookup")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host. Raises OSError, UnicodeError."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # type: ignore[return-value]


def _numeric_addresses(host: str) -> tuple[str, ...]:
    """The address that a host is already, in any form that the system would take: 127.1, 0x7f000001."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return ()
    return tuple(str(entry[4][0]) for entry in found)


def _plain_address(text: str) -> IPAddress:
    """An address; one of IPv4 that is written as one of IPv6 is that of IPv4. Raises RefusedTarget."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise RefusedTarget("its host has no address that can be used") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
