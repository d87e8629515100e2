"""Mails of webhooks: what is in one, and the operator's server that sends it.

Users name the recipients, within the domains that the operator allows, and jobs have some of the text: neither can add
a header, since `email.message` refuses line breaks in headers, and addresses are plain (`jobs.model.mail`).
"""

import asyncio
import ipaddress
import json
import re
import smtplib
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from functools import cached_property

import httpx

from api.webhooks.outgoing import DeliveryFailed
from api.webhooks.payloads import describe_event
from jobs.model.mail import MailServer, domain_of, parse_domains, parse_mail_server
from jobs.model.settings import Settings
from jobs.store.accounts.webhooks import StoredEvent
from shardyard.contract.errors import FieldError, InvalidRequest
from shardyard.contract.webhooks import DELIVERY_HEADER, EVENT_HEADER

#: Of one answer of the server, and of a whole delivery, waiting for a thread included.
STEP_SECONDS, TOTAL_SECONDS = 5.0, 15.0
#: Mails that are sent at a time.
MAIL_THREADS = 8
MAX_SUBJECT = 150
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class MailSettings:
    """`domains` are those that mails may go to; `*` stands for all."""

    server: MailServer
    user: str
    password: str = field(repr=False)
    sender: str
    domains: frozenset[str]


def read_mail_settings(settings: Settings) -> MailSettings | None:
    """None where the service sends no mails."""
    if not settings.mail_server:
        return None
    return MailSettings(
        parse_mail_server(settings.mail_server),
        settings.mail_user,
        settings.mail_password.get_secret_value(),
        settings.mail_from,
        parse_domains(settings.mail_domains),
    )


class MailTransport:
    def __init__(self, settings: MailSettings | None, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls` says whom to trust; by default those that HTTPS receivers are checked with."""
        self._settings = settings
        self._given_tls = tls
        self._threads = ThreadPoolExecutor(MAIL_THREADS, thread_name_prefix="webhook-mail")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return self._given_tls or httpx.create_ssl_context()

    def check_recipients(self, addresses: Sequence[str]) -> None:
        """Raises:
        InvalidRequest: the service sends no mails, or none to one of these.
        """
        if self._settings is None:
            problem = "this service sends no mail: its operator would have to set SHARDYARD_MAIL_SERVER"
            raise InvalidRequest("the webhook is not valid", fields=(FieldError("format", problem),))
        wrong = [
            FieldError(f"to.{place}", problem)
            for place, address in enumerate(addresses)
            if (problem := self._refusal(self._settings, address))
        ]
        if wrong:
            raise InvalidRequest("the webhook is not valid", fields=tuple(wrong))

    @staticmethod
    def _refusal(settings: MailSettings, address: str) -> str:
        try:
            domain = domain_of(address)
        except ValueError as error:
            return str(error)
        if settings.domains & {"*", domain}:
            return ""
        return "the service sends no mail to this domain (its operator allows some with SHARDYARD_MAIL_DOMAINS)"

    async def send(
        self, delivery: str, event: StoredEvent, recipients: Sequence[str], link: str = ""
    ) -> tuple[int, str]:
        """Send a mail about an event, with the link to its job's page, if there is one: the server's status, and which
        recipients it has refused.

        Raises:
            DeliveryFailed: the server has not taken it for any of them.
        """
        if self._settings is None:
            raise DeliveryFailed("the service no longer sends mail")
        refused = [address for address in recipients if self._refusal(self._settings, address)]
        allowed = [address for address in recipients if address not in refused]
        if not allowed:
            raise DeliveryFailed("the service no longer sends mail to these domains")
        message = render_mail(delivery, event, self._settings.sender, allowed, link)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(TOTAL_SECONDS):
                refused += await loop.run_in_executor(self._threads, self._send, self._settings, message, allowed)
        except TimeoutError:
            raise DeliveryFailed(f"the mail server has not accepted it within {TOTAL_SECONDS:g} s") from None
        return 250, f"refused for {', '.join(refused)}" if refused else ""

    def _send(self, settings: MailSettings, message: EmailMessage, recipients: Sequence[str]) -> list[str]:
        """Those of the recipients that the server has refused. Raises DeliveryFailed."""
        try:
            with self._connect(settings) as server:
                if settings.user:
                    server.login(settings.user, settings.password)
                return list(server.send_message(message, settings.sender, list(recipients)))
        except smtplib.SMTPRecipientsRefused as error:
            code = next(iter(error.recipients.values()))[0]
            raise DeliveryFailed(f"the mail server refuses all its recipients ({code})", code) from None
        except smtplib.SMTPAuthenticationError as error:
            raise DeliveryFailed("the mail server refuses the service's user", error.smtp_code) from None
        except smtplib.SMTPResponseException as error:
            raise DeliveryFailed(f"the mail server answered {error.smtp_code}", error.smtp_code) from None
        except ssl.SSLError:
            raise DeliveryFailed("no TLS connection to the mail server could be made") from None
        except (smtplib.SMTPException, OSError):
            raise DeliveryFailed("the mail server cannot be reached, or broke the connection") from None

    def _connect(self, settings: MailSettings) -> smtplib.SMTP:
        """Raises OSError, SMTPException, DeliveryFailed."""
        server, name = settings.server, domain_of(settings.sender)
        if server.scheme == "smtps":
            return smtplib.SMTP_SSL(
                server.host, server.port, local_hostname=name, timeout=STEP_SECONDS, context=self._tls
            )
        smtp = smtplib.SMTP(server.host, server.port, local_hostname=name, timeout=STEP_SECONDS)
        try:
            self._begin_tls(smtp, server)
        except BaseException:
            smtp.close()
            raise
        return smtp

    def _begin_tls(self, smtp: smtplib.SMTP, server: MailServer) -> None:
        """What stays on this machine may go without. Raises OSError, SMTPException, DeliveryFailed."""
        smtp.ehlo()
        if smtp.has_extn("starttls"):
            smtp.starttls(context=self._tls)
        elif not _is_loopback(server.host):
            raise DeliveryFailed("the mail server offers no TLS (STARTTLS)")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_loopback(host: str) -> bool:
    """Whether what is sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def render_mail(
    delivery: str, event: StoredEvent, sender: str, recipients: Sequence[str], link: str = ""
) -> EmailMessage:
    """Its Message-ID is made of the delivery's id, so that programs which read mails can drop doubles."""
    message = EmailMessage(policy=SMTP)
    line = describe_event(event)
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    subject = _CONTROL.sub(" ", f"[shardyard] {line}").strip()
    message["Subject"] = subject if len(subject) <= MAX_SUBJECT else subject[: MAX_SUBJECT - 1] + "…"
    happened = datetime.fromtimestamp(event.at / 1_000_000, UTC)
    message["Date"] = format_datetime(happened)
    message["Message-ID"] = f"<{delivery}@{domain_of(sender)}>"
    message["Auto-Submitted"] = "auto-generated"
    message[DELIVERY_HEADER] = delivery
    message[EVENT_HEADER] = event.kind
    facts = json.dumps(event.data, indent=2, ensure_ascii=False)
    shown = f"{line}\n{link}" if link else line
    message.set_content(f"{shown}\n\n{event.kind} at {happened:%Y-%m-%d %H:%M:%S} UTC\n\n{facts}\n")
    return message
