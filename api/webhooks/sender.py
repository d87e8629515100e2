"""Sends webhooks. Each API process has a sender, and one of them leads: it takes what is due from the control Redis,
sends it, and records what became of it.

A delivery is sent at least once. What was taken and not settled, since the process was killed, is due again after
`hold_seconds`, with the same id. Only then could two processes send at a time, or one that was frozen in between, so a
sender sends nothing that it took long ago.
"""

import asyncio
import random
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from api.webhooks.channels import ChannelOpener, DeliveryChannel
from api.webhooks.outgoing import DeliveryFailed
from jobs.protocol.names import SENDER_CHANNEL
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import DeliveryOutcome, TakenBatch, TakenDelivery
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import SecretKeyUnusable, Unavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SendingPolicy:
    """How deliveries are sent and tried again. After `most_tries`, or `most_seconds`, one is a dead letter."""

    first_retry_seconds: float = 5.0
    longest_retry_seconds: float = 3600.0
    longest_pause_seconds: float = 30.0
    most_tries: int = 24
    most_seconds: float = 86_400.0
    lead_seconds: float = 10.0
    hold_seconds: float = 30.0
    webhooks_at_once: int = 32
    lanes_at_once: int = 8

    def retry_seconds(self, tries: int) -> float:
        """How long to wait after so many tries: twice as long each time, with jitter."""
        wait = min(self.longest_retry_seconds, self.first_retry_seconds * 2.0 ** min(tries - 1, 30))
        return wait * random.uniform(0.5, 1.0)  # noqa: S311  (jitter, not a secret)


#: Between two takes while much is posted, so that events are taken in batches.
THROTTLE_SECONDS = 0.02
#: After Redis was away.
RECOVERY_SECONDS = 1.0
SETTLE_TRIES = 5


class WebhookSender:
    def __init__(
        self,
        control: AsyncRedisStore,
        channels: ChannelOpener,
        policy: SendingPolicy = SendingPolicy(),
    ) -> None:
        self._store = control
        self._channels = channels
        self._policy = policy
        self._name = uuid.uuid4().hex
        self._wake = asyncio.Event()
        self._batches: set[asyncio.Task[None]] = set()
        self._leads = False

    async def run(self) -> None:
        """Send until the task is cancelled; what is on its way then is sent again by whoever leads next."""
        listener, is_away = asyncio.create_task(self._listen()), False
        try:
            while not _is_cancelled():
                try:
                    wait = await self._take()
                    is_away = False
                except Unavailable as error:
                    if not is_away:
                        log.warning("webhooks_wait", error=str(error))
                    wait, is_away = RECOVERY_SECONDS, True
                except Exception:
                    log.exception("webhooks_not_taken")
                    wait = RECOVERY_SECONDS
                await self._wait(wait)
        finally:
            listener.cancel()
            for batch in self._batches:
                batch.cancel()
            await asyncio.gather(listener, *self._batches, return_exceptions=True)
            await self._leave()

    async def _take(self) -> float:
        """Begin to send what is due; the seconds until there may be more."""
        policy = self._policy
        free = policy.webhooks_at_once - len(self._batches)
        self._wake.clear()
        self._leads = True  # it may, from here on: one that is cancelled before the reply comes gives the lead back
        work = await self._store.run(
            webhooks.take_deliveries(
                self._name,
                lead_seconds=policy.lead_seconds,
                hold_seconds=policy.hold_seconds,
                webhooks=free,
                lanes=policy.lanes_at_once,
            )
        )
        self._leads = work.is_leader
        for batch in work.batches:
            task = asyncio.create_task(self._send_batch(batch))
            self._batches.add(task)
            task.add_done_callback(self._end_batch)
        longest = policy.lead_seconds / 3 if work.is_leader else policy.lead_seconds
        if work.wait_seconds is None or free <= len(work.batches):
            return longest  # a batch that ends wakes this up
        return min(longest, work.wait_seconds)

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(THROTTLE_SECONDS)
        if _is_cancelled():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _end_batch(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("webhooks_not_sent", exc_info=task.exception())

    async def _listen(self) -> None:
        """Wake up when there is something new. What is missed meanwhile is taken when the lead is renewed."""
        while not _is_cancelled():
            try:
                async with self._store.client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(SENDER_CHANNEL)
                    while not _is_cancelled():
                        message = await pubsub.get_message(timeout=self._policy.lead_seconds)
                        if message is not None and self._leads:
                            self._wake.set()
            except (RedisError, OSError, TimeoutError):
                await asyncio.sleep(RECOVERY_SECONDS)

    async def _leave(self) -> None:
        """Let another process lead at once."""
        if self._leads:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(RECOVERY_SECONDS):
                    await self._store.run(
                        webhooks.take_deliveries(self._name, lead_seconds=0.001, hold_seconds=1, webhooks=0, lanes=0)
                    )

    # -- one batch ---------------------------------------------------------------------------------

    async def _send_batch(self, batch: TakenBatch) -> None:
        """Send some deliveries of a webhook, all at a time: each is about something else."""
        taken = time.monotonic()
        try:
            channel = await self._channels.open(batch.webhook)
        except Unavailable:
            return  # what was taken is due again
        except DeliveryFailed as error:
            outcomes = [self._failure(each, error) for each in batch.deliveries]
        except SecretKeyUnusable as error:
            problem = "the service cannot decrypt its address and secret"
            log.error("webhook_unreadable", tenant=batch.webhook.tenant, webhook=batch.webhook.id, error=error.message)
            outcomes = [self._failure(each, DeliveryFailed(problem)) for each in batch.deliveries]
        else:
            if time.monotonic() - taken > self._policy.hold_seconds / 3:
                return  # this process stood still: what it took may be with another one by now
            outcomes = await asyncio.gather(*(self._send(batch, each, channel) for each in batch.deliveries))
        await self._settle(batch, outcomes)

    async def _send(self, batch: TakenBatch, delivery: TakenDelivery, channel: DeliveryChannel) -> DeliveryOutcome:
        webhook = batch.webhook
        try:
            result = await channel.send(delivery)
        except DeliveryFailed as error:
            return self._failure(delivery, error)
        except Exception:
            log.exception("webhook_send_failed", tenant=webhook.tenant, webhook=webhook.id)
            return self._failure(delivery, DeliveryFailed("the service could not send it"))
        return DeliveryOutcome(delivery.id, True, result.status, result.note)

    def _failure(self, delivery: TakenDelivery, error: DeliveryFailed) -> DeliveryOutcome:
        wait = self._policy.retry_seconds(delivery.tries)
        return DeliveryOutcome(delivery.id, False, error.status, error.problem, wait)

    async def _settle(self, batch: TakenBatch, outcomes: list[DeliveryOutcome]) -> None:
        """Where none has arrived, the others of this webhook wait a little as well: its receiver may be away."""
        webhook = batch.webhook
        soonest = min(0.0 if outcome.arrived else outcome.retry_seconds for outcome in outcomes)
        call = webhooks.settle_deliveries(
            webhook.tenant,
            webhook.id,
            outcomes,
            pause_seconds=min(soonest, self._policy.longest_pause_seconds),
            most_tries=self._policy.most_tries,
            most_seconds=self._policy.most_seconds,
        )
        for _ in range(SETTLE_TRIES):
            try:
                dead = await self._store.run(call)
            except Unavailable:
                await asyncio.sleep(RECOVERY_SECONDS)  # what is not settled is sent again, with the same ids
            else:
                break
        else:
            return
        for outcome in outcomes:
            if not outcome.arrived:
                log.info(
                    "webhook_given_up" if outcome.delivery in dead else "webhook_failed",
                    tenant=webhook.tenant,
                    webhook=webhook.id,
                    delivery=outcome.delivery,
                    status=outcome.status,
                    problem=outcome.problem,
                )


def _is_cancelled() -> bool:
    """Whether this task was cancelled: redis-py takes some cancellations for a connection that is lost."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
