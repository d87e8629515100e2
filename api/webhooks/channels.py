"""How deliveries of a webhook are sent, by its format."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from api.webhooks.job_links import JobLinks
from api.webhooks.mails import MailTransport
from api.webhooks.outgoing import DeliveryFailed, WebhookTransport
from api.webhooks.payloads import NothingToSend, render_github, render_json, render_slack
from api.webhooks.sealing import WebhookSecrets, unseal_secrets
from jobs.store.accounts.tenant_secrets import read_sealed_secrets
from jobs.store.accounts.webhooks import TakenDelivery, WebhookRecord
from jobs.store.client import AsyncRedisStore
from jobs.support import secret_keys
from shardyard.contract.errors import SecretKeyUnusable

#: Of a token that is sent in a header.
MAX_TOKEN_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class SendingResult:
    """What has arrived: the status of the answer, None where there was nothing to send, and a note about it."""

    status: int | None
    note: str = ""


class DeliveryChannel(Protocol):
    async def send(self, delivery: TakenDelivery) -> SendingResult:
        """Raises DeliveryFailed."""


@dataclass(frozen=True, slots=True)
class JsonChannel:
    webhook: str
    secrets: WebhookSecrets
    transport: WebhookTransport

    async def send(self, delivery: TakenDelivery) -> SendingResult:
        request = render_json(self.webhook, delivery.id, delivery.event, self.secrets)
        return SendingResult(await self.transport.send(request))


@dataclass(frozen=True, slots=True)
class SlackChannel:
    secrets: WebhookSecrets
    transport: WebhookTransport
    links: JobLinks

    async def send(self, delivery: TakenDelivery) -> SendingResult:
        link = self.links.link_of(delivery.event)
        return SendingResult(await self.transport.send(render_slack(delivery.id, delivery.event, self.secrets, link)))


@dataclass(frozen=True, slots=True)
class GithubChannel:
    url: str
    repo: str
    token: str
    transport: WebhookTransport
    links: JobLinks

    async def send(self, delivery: TakenDelivery) -> SendingResult:
        try:
            link = self.links.link_of(delivery.event)
            request = render_github(delivery.id, delivery.event, self.url, self.repo, self.token, link)
        except NothingToSend as nothing:
            return SendingResult(None, str(nothing))
        return SendingResult(await self.transport.send(request))

    def __repr__(self) -> str:
        return f"GithubChannel(repo={self.repo!r})"


@dataclass(frozen=True, slots=True)
class MailChannel:
    recipients: tuple[str, ...]
    transport: MailTransport
    links: JobLinks

    async def send(self, delivery: TakenDelivery) -> SendingResult:
        link = self.links.link_of(delivery.event)
        return SendingResult(*await self.transport.send(delivery.id, delivery.event, self.recipients, link))


class ChannelOpener:
    """Makes the channel of a webhook, with what is secret of it decrypted."""

    def __init__(
        self,
        control: AsyncRedisStore,
        key_file: Path,
        http: WebhookTransport,
        mail: MailTransport,
        links: JobLinks = JobLinks(),  # noqa: B008  (frozen)
    ) -> None:
        self._store = control
        self._key_file = key_file
        self._http = http
        self._mail = mail
        self._links = links

    async def open(self, webhook: WebhookRecord) -> DeliveryChannel:
        """Raises:
        DeliveryFailed: the webhook has what this service does not know, or names a secret that is not there.
        SecretKeyUnusable: what is secret of it cannot be decrypted.
        Unavailable: Redis does not answer.
        """
        if webhook.format == "email":
            return MailChannel(webhook.target.to, self._mail, self._links)
        secrets = await asyncio.to_thread(unseal_secrets, self._key_file, webhook)
        if webhook.format == "json":
            return JsonChannel(webhook.id, secrets, self._http)
        if webhook.format == "slack":
            return SlackChannel(secrets, self._http, self._links)
        if webhook.format == "github":
            token = await self._read_token(webhook.tenant, webhook.target.token_secret)
            return GithubChannel(secrets.url, webhook.target.repo, token, self._http, self._links)
        raise DeliveryFailed("this version of the service does not know its format")

    async def _read_token(self, tenant: str, name: str) -> str:
        """The value of a secret, each time anew: it may have been replaced."""
        sealed = (await self._store.run(read_sealed_secrets(tenant, [name])))[name]
        if sealed is None:
            raise DeliveryFailed(f"the secret {name!r} no longer exists")
        try:
            token = await asyncio.to_thread(self._decrypt, tenant, name, sealed)
        except SecretKeyUnusable:
            raise DeliveryFailed(f"the service cannot decrypt the secret {name!r}") from None
        if not (token.isascii() and token.isprintable() and 0 < len(token) <= MAX_TOKEN_LENGTH and " " not in token):
            raise DeliveryFailed(f"the secret {name!r} is not a token")
        return token

    def _decrypt(self, tenant: str, name: str, sealed: bytes) -> str:
        keys = secret_keys.read_keys(self._key_file)
        return secret_keys.decrypt_secret(keys, tenant, name, sealed).strip()
