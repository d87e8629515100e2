"""Requests as values, and the two transports that send them: one blocks, one awaits.

What the client does is written once, as plain generators that do nothing themselves: a `Flow` yields
a step (send this, wait so long, open a stream, read from it), is sent what came of it, and returns a
value; an `Items` also yields values for the caller. `BlockingTransport` and `AsyncTransport` run them.
"""

import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio
import httpx

from shardyard.client.connection import ServiceAddress
from shardyard.contract.errors import InvalidRequest, ShardyardError, Unavailable

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CERTIFICATE_BEGINS, CERTIFICATE_ENDS = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
UNTRUSTED = (
    "; if that is the service's certificate, name the file of the authority that signed it, or of the certificate, in "
    "SSL_CERT_FILE"
)
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a client connects. `timeout`: seconds for a connection and for an answer; `proxy`: its URL, in place of what
    HTTPS_PROXY and the like say; `verify`: a file of certificates, a context, or False to accept any certificate."""

    timeout: float | None = None
    proxy: str | None = None
    verify: "ssl.SSLContext | str | os.PathLike[str] | bool | None" = None


DEFAULT_OPTIONS: Final = ConnectionOptions()


class NotSent(Unavailable):
    """There was no connection, so the service has not received the request: any request is safe to repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall(Generic[T_co]):
    """One request, and the type of its answer: a struct for JSON, `str` for text, `bytes`, or `NoneType` for an empty
    one.

    `repeat`: sending it twice is as good as once. `make` creates a large body for each attempt.
    """

    method: str
    path: str
    kind: Any
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    make: Callable[[], Iterator[bytes]] | None = None
    read_seconds: float = READ_SECONDS
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of the service; `body` is empty if a stream was opened."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""

    @property
    def is_error(self) -> bool:
        return self.status >= 400


# -- steps -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendStep:
    """Gives an `HttpAnswer`, also for an error."""

    call: HttpCall[Any]


@dataclass(frozen=True, slots=True)
class OpenStep:
    """Gives the `HttpAnswer` without its body, which the next `ReadStep` steps give; an error comes with its body.

    A stream that was open before is closed.
    """

    call: HttpCall[Any]


@dataclass(frozen=True, slots=True)
class ReadStep:
    """Gives the next bytes of the open stream; none at its end."""


@dataclass(frozen=True, slots=True)
class PauseStep:
    seconds: float


@dataclass(frozen=True, slots=True)
class YieldStep(Generic[T]):
    """A value for the caller."""

    value: T


Step = SendStep | OpenStep | ReadStep | PauseStep
Flow = Generator[Step, Any, T]
Items = Generator[Step | YieldStep[T], Any, None]


def _advance_flow(flow: Generator[Any, Any, Any], outcome: Any) -> Any:
    return flow.throw(outcome) if isinstance(outcome, ShardyardError) else flow.send(outcome)


class BlockingTransport:
    """A transport that blocks. Several threads may use it."""

    def __init__(
        self,
        address: ServiceAddress,
        transport: httpx.BaseTransport | None = None,
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.url = address.url
        self._options = options
        self._http = _make_client(address, options, lambda **settings: httpx.Client(transport=transport, **settings))

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        outcome: Any = None
        try:
            while True:
                outcome = self._carry_out(_advance_flow(flow, outcome), [])
        except StopIteration as end:
            found: T = end.value
            return found

    def items(self, flow: Items[T]) -> Generator[T, None, None]:
        """The flow's values. Whatever is open is closed with this iterator."""
        outcome: Any = None
        opened: list[tuple[httpx.Response, Iterator[bytes]]] = []
        try:
            while True:
                try:
                    step = _advance_flow(flow, outcome)
                except StopIteration:
                    return
                if isinstance(step, YieldStep):
                    yield step.value
                    outcome = None
                else:
                    outcome = self._carry_out(step, opened)
        finally:
            flow.close()
            _close_streams(opened)

    def _carry_out(self, step: Step, opened: list[tuple[httpx.Response, Iterator[bytes]]]) -> Any:
        """The result of a step; a failure is returned, not raised."""
        try:
            match step:
                case PauseStep(seconds):
                    time.sleep(seconds)
                    return None
                case SendStep(call):
                    body = call.content if call.make is None else call.make()
                    return _read_answer(self._http.request(**_request_arguments(call, self._options), content=body))
                case OpenStep(call):
                    _close_streams(opened)
                    request = self._http.build_request(**_request_arguments(call, self._options))
                    # A large file may be in a bucket, which gets neither the token nor cookies.
                    response = self._http.send(request, stream=True, follow_redirects=True)
                    opened.append((response, response.iter_bytes()))
                    if response.is_error:
                        response.read()
                        return _read_answer(response)
                    return HttpAnswer(response.status_code, _lower_headers(response))
                case ReadStep():
                    return next(opened[-1][1], b"")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return translate_failure(self.url, error)


class AsyncTransport:
    """A transport that awaits."""

    def __init__(
        self,
        address: ServiceAddress,
        transport: httpx.AsyncBaseTransport | None = None,
        options: ConnectionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.url = address.url
        self._options = options
        self._http = _make_client(
            address, options, lambda **settings: httpx.AsyncClient(transport=transport, **settings)
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        outcome: Any = None
        try:
            while True:
                outcome = await self._carry_out(_advance_flow(flow, outcome), [])
        except StopIteration as end:
            found: T = end.value
            return found

    async def items(self, flow: Items[T]) -> AsyncGenerator[T, None]:
        """The flow's values. Whatever is open is closed with this iterator."""
        outcome: Any = None
        opened: list[tuple[httpx.Response, AsyncIterator[bytes]]] = []
        try:
            while True:
                try:
                    step = _advance_flow(flow, outcome)
                except StopIteration:
                    return
                if isinstance(step, YieldStep):
                    yield step.value
                    outcome = None
                else:
                    outcome = await self._carry_out(step, opened)
        finally:
            flow.close()
            with anyio.CancelScope(shield=True):
                await _aclose_streams(opened)

    async def _carry_out(self, step: Step, opened: list[tuple[httpx.Response, AsyncIterator[bytes]]]) -> Any:
        try:
            match step:
                case PauseStep(seconds):
                    await anyio.sleep(seconds)
                    return None
                case SendStep(call):
                    body = call.content if call.make is None else _iterate_async(call.make())
                    return _read_answer(
                        await self._http.request(**_request_arguments(call, self._options), content=body)
                    )
                case OpenStep(call):
                    await _aclose_streams(opened)
                    request = self._http.build_request(**_request_arguments(call, self._options))
                    response = await self._http.send(request, stream=True, follow_redirects=True)
                    opened.append((response, response.aiter_bytes()))
                    if response.is_error:
                        await response.aread()
                        return _read_answer(response)
                    return HttpAnswer(response.status_code, _lower_headers(response))
                case ReadStep():
                    return await anext(opened[-1][1], b"")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return translate_failure(self.url, error)


def translate_failure(url: str, error: Exception) -> ShardyardError:
    """A failed connection as an exception of this project."""
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return InvalidRequest(f"{url!r} is not a URL: {error}")
    kind = NotSent if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else Unavailable
    hint = UNTRUSTED if "CERTIFICATE_VERIFY_FAILED" in str(error) else ""
    found = kind(f"{url} cannot be reached: {error or type(error).__name__}{hint}")
    found.__cause__ = error
    return found


C = TypeVar("C", httpx.Client, httpx.AsyncClient)


def _make_client(address: ServiceAddress, options: ConnectionOptions, make: Callable[..., C]) -> C:
    """
    Raises:
        InvalidRequest: the address of the service or of the proxy is no URL, or `verify` is no file of certificates.
    """
    verify = _choose_verify(address, options)
    try:
        return make(base_url=address.url, headers=address.headers, verify=verify, proxy=options.proxy)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{address.url!r} is not a URL: {error}") from error
    except (ValueError, ImportError) as error:  # httpx says which schemes there are, or which package SOCKS needs
        raise InvalidRequest(f"the proxy {options.proxy!r} cannot be used: {error}") from error


def _choose_verify(address: ServiceAddress, options: ConnectionOptions) -> "ssl.SSLContext | bool":
    """What the service's certificate is checked against: what the caller says, else the one that it is known by."""
    import ssl

    if options.verify is None:
        return True if address.certificate is None else trust_certificate(address.certificate)
    if isinstance(options.verify, bool | ssl.SSLContext):
        return options.verify
    try:
        return ssl.create_default_context(cafile=os.fspath(options.verify))
    except OSError as error:  # an SSLError is an OSError
        raise InvalidRequest(f"verify: {options.verify} has no certificates that can be used: {error}") from error


def trust_certificate(file: Path) -> "ssl.SSLContext":
    """Accepts the first certificate of a PEM file and no other, whatever name it was made for.

    Raises:
        Unavailable: the file has none, or cannot be read.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be one that signs others, or itself
    try:
        first, found, _ = file.read_text("ascii", "replace").partition(CERTIFICATE_ENDS)
        context.load_verify_locations(cadata=first[first.index(CERTIFICATE_BEGINS) :] + found)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Unavailable(f"the service's certificate, {file}, cannot be used: {error}") from error
    return context


def _request_arguments(call: HttpCall[Any], options: ConnectionOptions) -> dict[str, Any]:
    return {
        "method": call.method,
        "url": call.path,
        "params": {name: _parameter_text(value) for name, value in call.params.items() if value is not None},
        "headers": dict(call.headers),
        "timeout": _limit_times(call.read_seconds, options.timeout),
    }


def _limit_times(read_seconds: float, chosen: float | None) -> httpx.Timeout:
    """`chosen` replaces what any answer may take; what the service holds a request for by itself comes on top."""
    if chosen is None:
        return httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS, read=read_seconds)
    held = max(0.0, read_seconds - READ_SECONDS)
    return httpx.Timeout(chosen, read=chosen + held)


def _parameter_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_answer(response: httpx.Response) -> HttpAnswer:
    return HttpAnswer(response.status_code, _lower_headers(response), response.content)


def _lower_headers(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


async def _iterate_async(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _close_streams(opened: list[tuple[httpx.Response, Iterator[bytes]]]) -> None:
    while opened:
        opened.pop()[0].close()


async def _aclose_streams(opened: list[tuple[httpx.Response, AsyncIterator[bytes]]]) -> None:
    while opened:
        await opened.pop()[0].aclose()
