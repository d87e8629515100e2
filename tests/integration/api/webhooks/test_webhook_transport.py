"""One request to a receiver of webhooks, over real sockets: where it may go, and what it takes of an answer."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from api.webhooks.addresses import AddressRules, HostResolver
from api.webhooks.outgoing import MAX_ANSWER_BYTES, DeliveryFailed, WebhookTransport
from api.webhooks.payloads import OutgoingRequest
from jobs.model.settings import parse_networks
from tests.support.samples.certificates import make_certificate
from tests.support.servers.webhook_receiver import ReceivedRequest, receiving, status

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

LOOPBACK = AddressRules(parse_networks("127.0.0.0/8"))

#: What is said of an answer that is no HTTP. Which of them, is a matter of what arrives first: its bytes, or its end.
BROKEN_ANSWERS = {"its answer is not HTTP, or ended early", "the connection broke"}


class Names:
    """A resolver that answers in turn with what it was given, and the last of it from then on."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def transport(*answers: Sequence[str], rules: AddressRules = LOOPBACK, seconds: float = 30.0) -> WebhookTransport:
    return WebhookTransport(rules, Names(*(answers or (["127.0.0.1"],))), tls=None, total_seconds=seconds)


async def post(sender: WebhookTransport, url: str) -> int:
    return await sender.send(OutgoingRequest("POST", url, {"Content-Type": "application/json"}, b"{}"))


async def failure(sender: WebhookTransport, url: str) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as failed:
        await post(sender, url)
    return failed.value


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a receiver called localhost serves with, and what trusts it."""
    files = make_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*files)
    return server, ssl.create_default_context(cafile=str(files[0]))


async def test_a_request_has_the_name_of_the_host_and_goes_to_the_address_that_was_checked() -> None:
    async with receiving() as receiver:
        names = Names(["127.0.0.1"])
        sender = WebhookTransport(LOOPBACK, names)
        assert await post(sender, f"http://hooks.test:{receiver.port}/path?q=1") == 204
        (request,) = receiver.requests
    assert (request.path, request.body) == ("/path?q=1", b"{}")
    assert request.headers["host"] == f"hooks.test:{receiver.port}"
    assert names.asked == [("hooks.test", receiver.port)]


async def test_a_private_address_is_never_connected_to() -> None:
    async with receiving() as receiver:
        for rules, addresses in (
            (AddressRules(), ["127.0.0.1"]),
            (AddressRules(), ["93.184.216.34", "127.0.0.1"]),
            (AddressRules(), ["::ffff:127.0.0.1"]),
            (AddressRules(parse_networks("10.0.0.0/8")), ["127.0.0.1"]),
        ):
            failed = await failure(transport(addresses, rules=rules), f"https://hooks.test:{receiver.port}/")
            assert "not public" in failed.problem
            assert "127" not in failed.problem
        assert receiver.connections == 0


async def test_a_name_that_resolves_to_something_else_later_is_connected_to_where_it_was_checked() -> None:
    """DNS rebinding: the first answer is allowed, and all later ones are not."""
    async with receiving() as receiver:
        sender = transport(["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"])
        assert await post(sender, f"http://hooks.test:{receiver.port}/") == 204
        failed = await failure(sender, f"http://hooks.test:{receiver.port}/")
        assert "not public" in failed.problem
        assert receiver.connections == 1


async def test_a_url_of_an_earlier_version_is_checked_again_when_it_is_used() -> None:
    for url in ("http://user:password@127.0.0.1/", "ftp://127.0.0.1/", "not a url"):
        assert (await failure(transport(), url)).status is None


async def test_a_certificate_must_be_that_of_the_host_name(
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server, trust = certificate
    async with receiving(tls=server) as receiver:
        sender = WebhookTransport(LOOPBACK, Names(["127.0.0.1"]), tls=trust)
        assert await post(sender, f"https://localhost:{receiver.port}/") == 204
        assert await post(sender, f"https://127.0.0.1:{receiver.port}/") == 204
        failed = await failure(sender, f"https://other.test:{receiver.port}/")
        assert "certificate is not accepted" in failed.problem
        untrusting = await failure(transport(), f"https://localhost:{receiver.port}/")
        assert "certificate is not accepted" in untrusting.problem
        assert len(receiver.requests) == 2


async def test_a_receiver_without_tls_gets_nothing_over_https() -> None:
    async with receiving() as receiver:
        failed = await failure(transport(), f"https://localhost:{receiver.port}/")
        assert "TLS" in failed.problem
        assert receiver.requests == []


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as target, receiving() as receiver:
        for code in (301, 302, 303, 307, 308):
            receiver.answer = status(code, f"Location: http://127.0.0.1:{target.port}/secret")
            failed = await failure(transport(), f"http://hooks.test:{receiver.port}/")
            assert (failed.status, "redirects" in failed.problem) == (code, True)
        assert target.connections == 0


@pytest.mark.parametrize("code", [400, 404, 410, 429, 500, 503])
async def test_an_answer_that_is_no_success_is_a_failure(code: int) -> None:
    async with receiving() as receiver:
        receiver.answer = status(code, body=b"internal details")
        failed = await failure(transport(), f"http://hooks.test:{receiver.port}/")
        assert (failed.status, failed.problem) == (code, f"it answered {code}")


async def test_of_a_huge_answer_little_is_read_and_its_status_counts() -> None:
    sent = 0

    async def flood(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with receiving() as receiver:
        receiver.answer = flood
        assert await post(transport(), f"http://hooks.test:{receiver.port}/") == 200
    assert sent < 1000 * MAX_ANSWER_BYTES


async def test_an_answer_whose_head_never_ends_is_cut_off() -> None:
    async def flood(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: " + b"x" * 60_000 + b"\r\n")
            await writer.drain()

    async with receiving() as receiver:
        receiver.answer = flood
        failed = await failure(transport(), f"http://hooks.test:{receiver.port}/")
        assert failed.status is None
        assert failed.problem in BROKEN_ANSWERS


async def drip(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """A byte now and then: each read succeeds, and the answer takes for ever."""
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: " + b"x" * 100_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def silence(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("answer", [drip, silence])
async def test_a_slow_answer_has_a_deadline(answer: object) -> None:
    async with receiving() as receiver:
        receiver.answer = answer  # type: ignore[assignment]
        async with asyncio.timeout(30):
            failed = await failure(transport(seconds=2.0), f"http://hooks.test:{receiver.port}/")
        assert failed.problem == "no answer within 2 s"


async def test_a_look_up_that_hangs_has_the_same_deadline() -> None:
    async def hang(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    sender = WebhookTransport(LOOPBACK, hang, total_seconds=0.2)
    assert (await failure(sender, "http://hooks.test/")).problem == "no answer within 0.2 s"


async def test_another_address_of_a_host_is_tried_when_one_cannot_be_connected_to() -> None:
    async with receiving() as receiver:
        sender = transport(["127.0.0.2", "127.0.0.1"])  # nobody listens on the first
        assert await post(sender, f"http://hooks.test:{receiver.port}/") == 204


async def test_a_receiver_that_is_away_or_unknown_is_a_failure_that_says_so() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert (await failure(transport(), f"http://hooks.test:{port}/")).problem == "no connection to it could be made"

    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    assert (await failure(WebhookTransport(LOOPBACK, unknown), "http://x.test/")).problem == "its host is not known"


async def test_an_answer_that_is_no_http_is_a_failure() -> None:
    async def talk(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp.test ESMTP\r\n")
        await writer.drain()

    async with receiving() as receiver:
        receiver.answer = talk
        failed = await failure(transport(), f"http://hooks.test:{receiver.port}/")
        assert failed.status is None
        assert failed.problem in BROKEN_ANSWERS


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.port}")
        assert await post(transport(), f"http://hooks.test:{receiver.port}/") == 204
        assert proxy.connections == 0


async def test_the_systems_resolver_gives_each_address_once() -> None:
    resolver = HostResolver()
    try:
        assert list(await resolver("127.0.0.1", 80)) == ["127.0.0.1"]
        with pytest.raises(OSError):
            await resolver("no-such-name.invalid", 80)
    finally:
        resolver.close()
