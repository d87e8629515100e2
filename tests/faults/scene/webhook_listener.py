"""A receiver of webhooks that refuses, stalls and hangs up now and then, and what must have reached it in the end."""

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from jobs.support import secret_keys
from tests.faults.scene.site import Site
from tests.integration.workers.service import TENANT
from tests.support.servers.webhook_receiver import ReceivedRequest, Receiver, receiving, status

#: Of 20 requests, so many are answered by 500, and of so many the connection is closed without an answer, after the
#: receiver has taken them: those come again.
FAILED, HUNG_UP, OF = 2, 2, 20


class WebhookListener:
    """Listens in a thread of its own."""

    def __init__(self, receiver: Receiver, seed: int) -> None:
        self._receiver = receiver
        self._chance = random.Random(seed)
        receiver.answer = self._answer

    async def _answer(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        drawn = self._chance.randrange(OF)
        if drawn >= FAILED + HUNG_UP:
            await status(204)(request, writer)
        elif drawn < FAILED:
            await status(500)(request, writer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._receiver.port}/"

    @property
    def requests(self) -> int:
        return len(self._receiver.requests)

    def states(self) -> dict[str, list[str]]:
        """The states of each job by its id, in the order of their arrival; what came again is left out."""
        seen, found = set[str](), defaultdict[str, list[str]](list)
        for event in list(self._receiver.events):
            if event.id not in seen:
                seen.add(event.id)
                found[event.data["id"]].append(event.kind.removeprefix("job."))
        return found


def follow_jobs(site: Site, listener: WebhookListener) -> None:
    """Have the service tell a listener of every state of a job from now on."""
    secret_keys.create_key_file(site.state_dir / "secret-key")
    body = {"url": listener.url, "events": ["job.*"]}
    answer = site.caller.insist("POST", "/v1/webhooks", json=body)
    assert answer.status_code == 201, answer.text


def untold(past: Mapping[str, Sequence[str]], told: Mapping[str, Sequence[str]]) -> list[str]:
    """What a listener has not heard, or heard in another order, of the states of jobs by their refs."""
    jobs = {ref.removeprefix(f"{TENANT}/"): list(states) for ref, states in past.items()}
    return [
        f"a webhook was told {', '.join(told.get(job, [])) or 'nothing'} of job {job}, which was {', '.join(states)}"
        for job, states in jobs.items()
        if list(told.get(job, [])) != states
    ]


@contextmanager
def webhook_listener(seed: int) -> Iterator[WebhookListener]:
    started, over = threading.Event(), asyncio.Event()
    found: list[tuple[asyncio.AbstractEventLoop, Receiver]] = []

    async def listen() -> None:
        async with receiving() as receiver:
            found.append((asyncio.get_running_loop(), receiver))
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    assert started.wait(30)
    loop, receiver = found[0]
    try:
        yield WebhookListener(receiver, seed)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
