"""Whether the service's machine reaches this one: it is asked to connect to a port here, and to say what it reads."""

import asyncio
import secrets
import ssl
from collections.abc import Mapping

import httpx
import msgspec

from shardyard.contract.joins import NodeReachView
from shardyard.service.joining.checks import Check, CheckResult

ASK_SECONDS = 10.0
WHAT = "port from the service"


async def check_reach(url: str, headers: Mapping[str, str], trusted: ssl.SSLContext, address: str) -> Check:
    """Listens on a free port of the address, as the supervisors of a job over several nodes do."""
    nonce = secrets.token_hex(16)

    async def say_nonce(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce.encode())
        await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(say_nonce, address, 0)
    except OSError as error:
        return Check(WHAT, CheckResult.FAILED, f"{address}: {error.strerror}", "give an address of this machine")
    async with server, httpx.AsyncClient(verify=trusted, headers=dict(headers), timeout=ASK_SECONDS) as client:
        port = server.sockets[0].getsockname()[1]
        try:
            answer = await client.post(f"{url}/v1/node/join/reach", json={"port": port, "nonce": nonce})
            answer.raise_for_status()
            found = msgspec.json.decode(answer.content, type=NodeReachView)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            return Check(WHAT, CheckResult.UNKNOWN, f"the service was asked to try, and failed: {error}")
    return _judge(found, address, port)


def _judge(found: NodeReachView, address: str, port: int) -> Check:
    if found.reached and found.address == address:
        return Check(WHAT, CheckResult.PASSED, f"it reaches {address} port {port}")
    if found.address != address:
        return Check(
            WHAT,
            CheckResult.UNKNOWN,
            f"it sees this machine at {found.address}, and tried that one",
            "jobs of one node need no port here",
        )
    return Check(
        WHAT,
        CheckResult.DOUBTFUL,
        f"it does not reach {address} port {port}: {found.why}",
        "jobs over several nodes need all TCP ports open between the nodes; jobs of one node need none",
    )
