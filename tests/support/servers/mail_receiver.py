"""A mail server in this process, with STARTTLS, that keeps what it gets, and refuses what it is told to."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP as MAIL_POLICY

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "shardyard", "pa55word"


@dataclass(frozen=True)
class ReceivedMail:
    sender: str
    recipients: list[str]
    message: EmailMessage
    is_encrypted: bool


class MailReceiver:
    """`answer` is the server's last word of a mail, and may be replaced at any time."""

    def __init__(self) -> None:
        self.mails: list[ReceivedMail] = []
        self.answer = "250 OK"
        self.refused: set[str] = set()
        self.port = 0
        self._grown = asyncio.Condition()

    async def wait_for(self, count: int) -> list[ReceivedMail]:
        """Once there are so many mails."""
        async with asyncio.timeout(60), self._grown:
            await self._grown.wait_for(lambda: len(self.mails) >= count)
        return self.mails

    async def handle_RCPT(  # noqa: N802  (the names of aiosmtpd)
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        message = message_from_bytes(envelope.content, policy=MAIL_POLICY)
        mail = ReceivedMail(
            str(envelope.mail_from), list(map(str, envelope.rcpt_tos)), message, session.ssl is not None
        )
        async with self._grown:
            self.mails.append(mail)
            self._grown.notify_all()
        return self.answer


def _authenticate(server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: object) -> AuthResult:
    right = LoginPassword(USER.encode(), PASSWORD.encode())
    return AuthResult(success=given == right, handled=False)


@asynccontextmanager
async def receiving_mail(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[MailReceiver]:
    """With `tls`, clients must ask for it, and then sign in."""
    receiver = MailReceiver()

    def serve() -> SMTP:
        return SMTP(
            receiver,
            hostname="mail.test",
            tls_context=tls,
            require_starttls=tls is not None,
            auth_required=tls is not None,
            authenticator=_authenticate,
        )

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
