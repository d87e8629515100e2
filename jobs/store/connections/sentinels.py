"""A Redis that Sentinels watch: its URL, and clients that ask them which server is the primary at the moment.

    redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379,HOST:26379/NAME?replicas=1
    rediss+sentinel://...                                                            with TLS, of servers and Sentinels

USER and PASSWORD are those of the servers. NAME is what the Sentinels call the group of servers. Of the query,
`sentinel_username` and `sentinel_password` are for the Sentinels, `db` is the number of the database, and options that
begin with `ssl_` are those of rediss:// URLs. `replicas` says how many replicas must have a change before it counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
DEFAULT_PORT, DEFAULT_REPLICAS = 26_379, 1
MAX_SENTINELS, MAX_REPLICAS = 16, 16
#: How long one Sentinel is waited for before the next is asked.
SENTINEL_SECONDS = 1.0
_OWN_OPTIONS: Final = frozenset({"sentinel_username", "sentinel_password", "replicas"})
_FORM: Final = "use redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379,HOST:26379/NAME"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:,@/]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """What such a URL says. `server_options` and `tls_options` are keyword arguments of redis-py."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    replicas: int
    is_tls: bool
    login: Mapping[str, str] = field(repr=False)
    server_options: Mapping[str, Any] = field(repr=False)
    tls_options: Mapping[str, Any]

    @property
    def client_options(self) -> dict[str, Any]:
        """Of a connection to a server."""
        return {"ssl": self.is_tls, **self.tls_options, **self.server_options}

    @property
    def sentinel_options(self) -> dict[str, Any]:
        """Of a connection to a Sentinel: with a deadline, and each is asked once, since there are others."""
        timeouts = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
        return {"ssl": self.is_tls, **self.tls_options, **self.login, **timeouts}


def is_sentinel_url(url: str) -> bool:
    return urlsplit(url).scheme in SCHEMES


def replicas_of(url: str) -> int:
    """How many replicas must have a change before it counts: none where no Sentinel can make one the primary.

    Raises:
        ValueError: as `parse_sentinel_url`.
    """
    return parse_sentinel_url(url).replicas if is_sentinel_url(url) else 0


def parse_sentinel_url(url: str) -> SentinelUrl:
    """Raises:
    ValueError: it is none; the message says what is wrong, without the password.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{parts.scheme or 'no'}:// is not a URL of Sentinels; {_FORM}")
    name = parts.path.removeprefix("/")
    if not name or "/" in name:
        raise ValueError(f"the URL of Sentinels must name the group of servers behind the addresses; {_FORM}")
    query = parse_qsl(parts.query, keep_blank_values=True)
    own = {key: value for key, value in query if key in _OWN_OPTIONS}
    rest = urlencode([(key, value) for key, value in query if key not in _OWN_OPTIONS])
    login, _, hosts = parts.netloc.rpartition("@")
    # As redis-py reads the URL of a single server.
    options: dict[str, Any] = parse_url(  # type: ignore[no-untyped-call]
        f"{SCHEMES[parts.scheme]}://{login}{'@' if login else ''}server/?{rest}"
    )
    for of_one_server in ("host", "port", "connection_class"):
        options.pop(of_one_server, None)
    return SentinelUrl(
        sentinels=_parse_addresses(hosts),
        name=name,
        replicas=_parse_replicas(own.get("replicas", f"{DEFAULT_REPLICAS}")),
        is_tls=SCHEMES[parts.scheme] == "rediss",
        login={key.removeprefix("sentinel_"): value for key, value in own.items() if key != "replicas"},
        server_options={key: value for key, value in options.items() if not key.startswith("ssl_")},
        tls_options={key: value for key, value in options.items() if key.startswith("ssl_")},
    )


def sentinel_client(url: str, **settings: Any) -> "redis.Redis":
    """A synchronous client of the primary; `settings` are redis-py's, of connections to servers.

    Raises:
        ValueError: as `parse_sentinel_url`.
    """
    found = parse_sentinel_url(url)
    once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "driver_info": None}
    manager: Any = _BriefSentinel(found.sentinels, sentinel_kwargs=found.sentinel_options | once)  # type: ignore[no-untyped-call]
    client: redis.Redis = manager.master_for(found.name, **found.client_options, **settings)
    return client


def async_sentinel_client(url: str, **settings: Any) -> "redis.asyncio.Redis":
    """The same for asyncio, with a bounded pool: `settings` are those of `BlockingConnectionPool`."""
    found = parse_sentinel_url(url)
    once: dict[str, Any] = {"retry": AsyncRetry(NoBackoff(), 0), "driver_info": None}
    manager: Any = _BriefAsyncSentinel(found.sentinels, sentinel_kwargs=found.sentinel_options | once)  # type: ignore[no-untyped-call]
    pool = _BlockingSentinelPool
    client: redis.asyncio.Redis = manager.master_for(
        found.name, connection_pool_class=pool, **found.client_options, **settings
    )
    return client


class _BriefSentinel(Sentinel):
    """Holds no connection to a Sentinel between two questions: each supervisor would have some."""

    def discover_master(self, service_name: str) -> Any:
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        finally:
            for sentinel in self.sentinels:
                sentinel.close()


class _BriefAsyncSentinel(AsyncSentinel):
    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        finally:
            for sentinel in self.sentinels:
                await sentinel.aclose()


class _BlockingSentinelPool(AsyncSentinelConnectionPool, BlockingConnectionPool):
    """So many connections and no more, as `api.data.redis_pool` has them, to the primary."""


def _parse_addresses(hosts: str) -> tuple[tuple[str, int], ...]:
    found = []
    for text in hosts.split(","):
        address = _ADDRESS.fullmatch(text)
        if address is None or not 0 < int(address[2] or DEFAULT_PORT) < 65_536:
            raise ValueError(f"{text[:100]!r} is not the address of a Sentinel; {_FORM}")
        found.append((address[1].strip("[]"), int(address[2] or DEFAULT_PORT)))
    if len(found) > MAX_SENTINELS:
        raise ValueError(f"the URL names {len(found)} Sentinels; name {MAX_SENTINELS} at most")
    return tuple(found)


def _parse_replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_REPLICAS):
        raise ValueError(f"replicas={text[:20]!r} of the URL of Sentinels must be a number from 0 to {MAX_REPLICAS}")
    return int(text)
