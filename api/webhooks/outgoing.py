"""One request to a receiver of webhooks: to an address that was checked, with small limits, and without redirects.

Each request has a connection of its own. A pool would find an open connection by its address, which another host's name
may share, and whose certificate was never compared with this name.
"""

import asyncio
import ssl
from functools import cached_property

import httpx

from api.webhooks.addresses import AddressRules, RefusedTarget, Resolver
from api.webhooks.payloads import OutgoingRequest

CONNECT_SECONDS = 5.0
#: Of a whole delivery: look-up, connection, request and answer.
TOTAL_SECONDS = 10.0
#: Of an answer's body, which nobody sees. A receiver that says more is cut off; its status counts.
MAX_ANSWER_BYTES = 16 * 1024
#: Addresses of a host that are tried when one cannot be connected to.
MAX_ADDRESSES = 3


class DeliveryFailed(Exception):
    """A receiver was not reached, or has not accepted; `status` is that of its answer, if there was one."""

    def __init__(self, problem: str, status: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.status = status


class WebhookTransport:
    def __init__(
        self,
        rules: AddressRules,
        resolve: Resolver,
        *,
        tls: ssl.SSLContext | None = None,
        total_seconds: float = TOTAL_SECONDS,
    ) -> None:
        """`tls` says whom to trust; by default certifi's authorities, or those that SSL_CERT_FILE names."""
        self._rules = rules
        self._resolve = resolve
        self._given_tls = tls
        self._total_seconds = total_seconds

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made when the first webhook is sent: it reads all authorities."""
        return self._given_tls or httpx.create_ssl_context()

    async def send(self, wanted: OutgoingRequest) -> int:
        """Send a request; the status of the answer, 200 to 299.

        Raises:
            DeliveryFailed: it has not arrived, or was not accepted.
        """
        try:
            async with asyncio.timeout(self._total_seconds):
                status = await self._send(self._rules.parse_target(wanted.url), wanted)
        except TimeoutError:
            raise DeliveryFailed(f"no answer within {self._total_seconds:g} s") from None
        except RefusedTarget as error:
            raise DeliveryFailed(str(error)) from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise DeliveryFailed(_describe(error)) from error
        if 300 <= status < 400:
            raise DeliveryFailed(f"it redirects ({status}), which is not followed: set the address it leads to", status)
        if not 200 <= status < 300:
            raise DeliveryFailed(f"it answered {status}", status)
        return status

    async def _send(self, url: httpx.URL, wanted: OutgoingRequest) -> int:
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            addresses = await self._resolve(url.raw_host.decode("ascii"), port)
        except (OSError, UnicodeError):
            raise RefusedTarget("its host is not known") from None
        self._rules.check_addresses(url.scheme, addresses)
        *others, last = addresses[:MAX_ADDRESSES]
        for address in others:
            try:
                return await self._send_to(address, url, wanted)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._send_to(last, url, wanted)

    async def _send_to(self, address: str, url: httpx.URL, wanted: OutgoingRequest) -> int:
        """To one address; the certificate must be that of the host."""
        request = httpx.Request(
            wanted.method,
            url.copy_with(host=address),
            headers={"Host": url.netloc.decode("ascii"), **wanted.headers},
            content=wanted.body,
            extensions={
                "sni_hostname": url.raw_host.decode("ascii"),
                "timeout": httpx.Timeout(self._total_seconds, connect=CONNECT_SECONDS).as_dict(),
            },
        )
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, retries=0) as transport:
            answer = await transport.handle_async_request(request)
            try:
                left = MAX_ANSWER_BYTES
                async for chunk in answer.aiter_raw():
                    left -= len(chunk)
                    if left < 0:
                        break
            finally:
                await answer.aclose()
            return answer.status_code


def _describe(error: Exception) -> str:
    """What went wrong, in words that tell nothing of the service's network."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection could be made"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "no connection to it could be made"
    if isinstance(error, httpx.RemoteProtocolError):
        return "its answer is not HTTP, or ended early"
    return "the connection broke"
