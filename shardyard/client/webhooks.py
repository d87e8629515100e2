"""The methods of `Client` that are about webhooks.

Generated from `async_webhooks.py` by `python -m tools.generate_sync_client`: change that file, not this one.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from shardyard.client import endpoints
from shardyard.client.transport import HttpCall
from shardyard.contract import webhooks

T = TypeVar("T")


class WebhookMethods:
    @abstractmethod
    def call(self, call: HttpCall[T]) -> T: ...

    def list_webhooks(self) -> list[webhooks.WebhookView]:
        """Your webhooks, without their secrets."""
        return self.call(endpoints.list_webhooks()).webhooks

    def create_webhook(
        self,
        url: str | None = None,
        *,
        events: Sequence[str] = ("job.*",),
        form: str = "json",
        name: str = "",
        repo: str | None = None,
        token_secret: str | None = None,
        to: Sequence[str] | None = None,
    ) -> webhooks.NewWebhook:
        """Create a webhook; its `secret`, for `shardyard.webhooks.verify`, is returned only this once. `form` is json
        or slack, which need a `url`; github, with a `repo` and the name of a secret with a token; or email, with
        `to`."""
        fields = {"name": name, "repo": repo, "token_secret": token_secret, "to": None if to is None else list(to)}
        return self.call(endpoints.create_webhook(url, events=events, form=form, **fields))

    def show_webhook(self, webhook: str) -> webhooks.WebhookView:
        return self.call(endpoints.show_webhook(webhook))

    def change_webhook(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        name: str | None = None,
        active: bool | None = None,
        repo: str | None = None,
        token_secret: str | None = None,
        to: Sequence[str] | None = None,
    ) -> webhooks.WebhookView:
        """Change the given fields of a webhook. One that is not active gets no events."""
        lists = {"events": None if events is None else list(events), "to": None if to is None else list(to)}
        fields = {"url": url, "name": name, "active": active, "repo": repo, "token_secret": token_secret}
        return self.call(endpoints.change_webhook(webhook, **fields, **lists))

    def rotate_webhook(self, webhook: str, *, overlap_seconds: int | None = None) -> webhooks.NewWebhook:
        """Replace the secret of a webhook. For `overlap_seconds`, a day by default, deliveries are signed with both."""
        return self.call(endpoints.rotate_webhook(webhook, overlap_seconds=overlap_seconds))

    def delete_webhook(self, webhook: str) -> None:
        """Delete a webhook, and the deliveries that wait for it."""
        self.call(endpoints.delete_webhook(webhook))

    def test_webhook(self, webhook: str) -> str:
        """Send a test; the id of its delivery."""
        return self.call(endpoints.test_webhook(webhook)).delivery

    def list_deliveries(
        self, webhook: str, *, state: str = "all", cursor: str = "", limit: int = 50
    ) -> webhooks.DeliveryList:
        """One page of the deliveries of a webhook, the newest first. `state`: all, delivered or dead."""
        return self.call(endpoints.list_deliveries(webhook, state=state, cursor=cursor, limit=limit))

    def redeliver(self, webhook: str, delivery: str) -> None:
        """Send a delivery again, with its id."""
        self.call(endpoints.redeliver(webhook, delivery))
