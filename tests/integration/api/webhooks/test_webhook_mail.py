"""Mails of webhooks, sent to a real mail server; and statuses of commits, sent to a server that stands for GitHub's."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from api.webhooks.mails import MailSettings, MailTransport
from api.webhooks.sealing import WebhookSecrets, seal_secrets
from jobs.model.mail import MailServer
from jobs.model.settings import Settings
from jobs.store.accounts import tenant_secrets, webhooks
from jobs.store.accounts.webhooks import DeliveryRecord, StoredEvent, WebhookRecord, WebhookTarget
from jobs.support import secret_keys
from tests.integration.api.webhooks.test_webhook_delivery import Bench, bench
from tests.support.samples.certificates import make_certificate
from tests.support.servers.mail_receiver import PASSWORD, USER, MailReceiver, receiving_mail
from tests.support.servers.webhook_receiver import receiving, status

__all__ = ["bench"]
pytestmark = [pytest.mark.integration, pytest.mark.anyio]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def with_mail(bench: Bench, receiver: MailReceiver, *, tls: ssl.SSLContext | None = None, **changes: object) -> Bench:
    """`tls` is for clients that trust the server."""
    server = MailServer("smtp", "localhost" if tls else "127.0.0.1", receiver.port)
    user, password = (USER, PASSWORD) if tls else ("", "")
    mail = MailSettings(server, user, password, "shardyard@example.com", frozenset({"example.com"}))
    return replace(bench, mail=replace(mail, **changes), mail_tls=tls)  # type: ignore[arg-type]


def add(bench: Bench, form: str, target: WebhookTarget, url: str = "mailto:x") -> None:
    sealed = seal_secrets(bench.key_file, "default", "wh_1", WebhookSecrets(url, "s"))
    record = WebhookRecord(
        tenant="default", id="wh_1", name="", url=url, format=form, kinds=("job.*",), sealed=sealed, target=target
    )
    bench.world.run(webhooks.put_webhook(record))


def last_delivery(bench: Bench) -> DeliveryRecord:
    found: DeliveryRecord = bench.world.run(
        webhooks.list_deliveries("default", "wh_1", "all", before="", limit=1)
    ).deliveries[0]
    return found


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of clients that trust it."""
    certificate, key = make_certificate(tmp_path / "tls")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))


async def test_a_mail_goes_over_tls_with_a_sign_in_to_all_recipients(
    bench: Bench, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async with receiving_mail(tls=contexts[0]) as receiver:
        bench = with_mail(bench, receiver, tls=contexts[1])
        add(bench, "email", WebhookTarget(to=("a@example.com", "b@example.com")))
        async with bench.sending():
            job = bench.world.submit(name="trial")
            (mail,) = await receiver.wait_for(1)
            await bench.wait_until()
    assert mail.is_encrypted
    assert (mail.sender, mail.recipients) == ("shardyard@example.com", ["a@example.com", "b@example.com"])
    sent = last_delivery(bench)
    assert (sent.state.state, sent.state.status) == ("done", 250)
    message = mail.message
    assert message["Subject"] == f"[shardyard] trial ({job}) is queued: waiting_for_devices"
    assert message["Message-ID"] == f"<{sent.id}@example.com>"
    assert (message["Auto-Submitted"], message["Shardyard-Event"]) == ("auto-generated", "job.queued")
    assert f'"id": "{job}"' in message.get_content()


async def test_what_an_event_says_cannot_add_a_header(bench: Bench) -> None:
    hostile = "x\r\nBcc: v@example.com\n\n.\r\nMAIL FROM:<e@example.com>\u2028é"
    async with receiving_mail() as receiver:
        transport = MailTransport(with_mail(bench, receiver).mail)
        event = StoredEvent("job.failed", "job:1", 0, 0, {"id": "1", "name": hostile, "state": "failed"})
        assert await transport.send("d-1", event, ["a@example.com"]) == (250, "")
        transport.close()
    (mail,) = receiver.mails
    assert (mail.sender, mail.recipients) == ("shardyard@example.com", ["a@example.com"])
    assert mail.message["Bcc"] is None
    assert "Bcc: v@example.com . MAIL FROM" in mail.message["Subject"]


@pytest.mark.parametrize(
    ("answer", "refused", "problem"),
    [
        ("451 later", set(), "the mail server answered 451"),
        ("250 OK", {"a@example.com"}, "the mail server refuses all its recipients (550)"),
    ],
)
async def test_what_the_server_refuses_is_tried_again(
    bench: Bench, answer: str, refused: set[str], problem: str
) -> None:
    async with receiving_mail() as receiver:
        receiver.answer, receiver.refused = answer, refused
        bench = with_mail(bench, receiver)
        add(bench, "email", WebhookTarget(to=("a@example.com",)))
        async with bench.sending():
            bench.world.submit()
            found = await bench.wait_for_problem()
            assert found.problem == problem
            receiver.answer, receiver.refused = "250 OK", set()
            await bench.wait_until()
    assert last_delivery(bench).state.tries > 1


async def test_a_recipient_that_is_refused_does_not_keep_the_mail_from_others(bench: Bench) -> None:
    async with receiving_mail() as receiver:
        receiver.refused = {"b@example.com"}
        bench = with_mail(bench, receiver)
        add(bench, "email", WebhookTarget(to=("a@example.com", "b@example.com", "c@elsewhere.test")))
        async with bench.sending():
            bench.world.submit()
            (mail,) = await receiver.wait_for(1)
            await bench.wait_until()
    assert mail.recipients == ["a@example.com"]
    sent = last_delivery(bench).state
    assert (sent.state, sent.problem) == ("done", "refused for c@elsewhere.test, b@example.com")


async def test_a_server_whose_certificate_is_not_trusted_gets_no_password(
    bench: Bench, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async with receiving_mail(tls=contexts[0]) as receiver:
        bench = with_mail(bench, receiver, tls=ssl.create_default_context())
        add(bench, "email", WebhookTarget(to=("a@example.com",)))
        async with bench.sending():
            bench.world.submit()
            found = await bench.wait_for_problem()
    assert found.problem == "no TLS connection to the mail server could be made"
    assert receiver.mails == []


# -- github ----------------------------------------------------------------------------------------


async def test_a_commit_gets_a_status_with_the_token_of_a_secret(bench: Bench, settings: Settings) -> None:
    keys = secret_keys.read_keys(bench.key_file)
    for name, value in (("gh", "t0ken\n"), ("gh2", "an0ther")):
        sealed = secret_keys.encrypt_secret(keys, "default", name, value)
        bench.world.run(tenant_secrets.put_secret("default", name, sealed))
    async with receiving() as receiver:
        receiver.answer = status(201)
        add(bench, "github", WebhookTarget(repo="acme/vision", token_secret="gh"), f"http://api.test:{receiver.port}")
        async with bench.sending():
            bench.world.submit(labels={"git-commit": COMMIT})
            (request,) = await receiver.wait_for(1)
            await bench.wait_until()
            bench.world.submit()  # of no commit: nothing is sent
            await bench.wait_until()
    assert request.path == f"/repos/acme/vision/statuses/{COMMIT}"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert len(receiver.requests) == 1
    skipped = last_delivery(bench).state
    assert (skipped.state, skipped.status) == ("done", None)
    assert "git-commit" in skipped.problem


async def test_a_token_that_was_deleted_fails_the_delivery(bench: Bench) -> None:
    add(bench, "github", WebhookTarget(repo="acme/vision", token_secret="gh"), "http://api.test:1")
    async with bench.sending():
        bench.world.submit(labels={"git-commit": COMMIT})
        found = await bench.wait_for_problem()
    assert found.problem == "the secret 'gh' no longer exists"
