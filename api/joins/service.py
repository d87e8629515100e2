"""The service of machines that join: hands out what a node needs to holders of a token for that.

What is handed out lets its owner work as a node: see and end the jobs of all tenants, and read their secrets. So a
token to join with is for this alone, and short-lived; the token that the node keeps is for the files of its attempts.
"""

import asyncio
import time
from contextlib import suppress
from importlib import metadata
from ipaddress import ip_address
from pathlib import Path

import msgspec

from api.data.fleet_cache import FleetCache
from api.http import audit
from api.http.auth import Principal
from api.schemas.fleet_requests import parse_join, parse_reach
from jobs.model.join_offer import JoinOffer, OfferUnusable, read_offer
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import AsyncRedisStore
from jobs.support import secret_keys
from shardyard.contract.errors import Conflict, Forbidden, SecretKeyUnusable
from shardyard.contract.joins import NodeReachView, NodeSetup

REACH_SECONDS = 3.0
#: Connections to nodes that are tried at a time.
TRIED_AT_A_TIME = 16
NOT_LISTENING = (
    "no machine can join this service: start it with `shardyard up --listen ADDRESS`, or name a file with what "
    "machines are given in SHARDYARD_JOIN_FILE"
)


class JoinService:
    """`offer_file`: what machines are given; None: nothing. `key_file` has the keys of secrets."""

    def __init__(self, control: AsyncRedisStore, fleet: FleetCache, offer_file: Path | None, key_file: Path) -> None:
        self._store = control
        self._fleet = fleet
        self._offer_file = offer_file
        self._key_file = key_file
        self._trying = asyncio.Semaphore(TRIED_AT_A_TIME)

    async def join(self, who: Principal, body: bytes, peer: str) -> NodeSetup:
        """What a node needs. `peer`: the address that it asks from.

        Raises:
            InvalidRequest: a field is wrong.
            Forbidden: the token is for another node.
            Conflict: the service has nothing to hand out.
        """
        wanted = parse_join(body)
        if who.node not in ("", wanted.node):
            raise Forbidden(f"this token is for the node {who.node!r} alone; join with --name {who.node}")
        offer = await asyncio.to_thread(self._read_offer)
        keys = await asyncio.to_thread(self._read_keys)
        alive = await self._alive_on(wanted.node)
        token = await self._issue_token(wanted.node) if wanted.wants_token else ""
        audit.log_audit_event(who, "node_joined", node=wanted.node, address=peer, new_token=bool(token))
        return NodeSetup(
            **msgspec.structs.asdict(offer),
            node=wanted.node,
            token=token,
            secret_keys=keys,
            version=metadata.version("shardyard"),
            torch=_version_of("torch"),
            address_seen=_plain(peer),
            alive_on=alive,
            now_us=time.time_ns() // 1000,
        )

    async def reach(self, body: bytes, peer: str) -> NodeReachView:
        """Whether this host reaches a port of the caller's address, and finds the nonce there.

        Raises:
            InvalidRequest: a field is wrong.
        """
        wanted = parse_reach(body)
        async with self._trying:
            try:
                async with asyncio.timeout(REACH_SECONDS):
                    found = await _read_line(peer, wanted.port, len(wanted.nonce))
            except TimeoutError:
                return NodeReachView(reached=False, address=_plain(peer), why="nothing answers: a firewall drops it")
            except (OSError, asyncio.IncompleteReadError) as error:
                return NodeReachView(reached=False, address=_plain(peer), why=_in_words(error))
        if found != wanted.nonce.encode():
            return NodeReachView(reached=False, address=_plain(peer), why="something else answers there")
        return NodeReachView(reached=True, address=_plain(peer))

    def _read_offer(self) -> JoinOffer:
        if self._offer_file is None:
            raise Conflict(NOT_LISTENING)
        try:
            return read_offer(self._offer_file.expanduser())
        except OfferUnusable as error:
            raise Conflict(str(error)) from error

    def _read_keys(self) -> str:
        """The file with the keys of secrets, as it is; "" where the service has none."""
        try:
            secret_keys.read_keys(self._key_file)  # one that could not be used is not handed on
            return self._key_file.read_text()
        except (SecretKeyUnusable, OSError):
            return ""

    async def _alive_on(self, node: str) -> str:
        """The host on which a node of this name is alive; "" where there is none."""
        fleet = await self._fleet.read_fleet(max_age=0)
        return next((found.info.host for found in fleet.nodes if found.id == node and found.alive), "")

    async def _issue_token(self, node: str) -> str:
        now = time.time_ns() // 1000
        text, record = tokens.issue_token(DEFAULT_TENANT, {Scope.NODE}, f"node {node}", created=now, node=node)
        await self._store.run(tokens.put_token(record))
        return text


async def _read_line(address: str, port: int, count: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=1024)
    try:
        return await reader.readexactly(count)
    finally:
        writer.transport.abort()


def _in_words(error: Exception) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "something else answers there"
    return getattr(error, "strerror", "") or str(error) or type(error).__name__


def _plain(address: str) -> str:
    """An address without the IPv6 clothes that a server on both protocols sees it in."""
    with suppress(ValueError):
        found = ip_address(address)
        return str(getattr(found, "ipv4_mapped", None) or found)
    return address


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
