"""Real attempts that leave their devices, for a user or for a job of a higher priority, and go on where they were."""

from functools import partial

import pytest

from shardyard.client import Client
from tests.acceptance.harness import Up, wait_for_state, wait_until
from tests.acceptance.test_up import digits, is_past

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


def resumed_steps(client: Client, job: str) -> list[int | None]:
    """The step that each attempt of a job began with."""
    return [
        None if attempt.resumed_from is None else attempt.resumed_from.step for attempt in client.job(job).attempts()
    ]


def test_a_job_makes_room_saves_and_goes_on_when_others_have_ended_or_its_user_says_so(up: Up) -> None:
    client = up.start()
    client.set_pool_policy("default", preempt=True)
    spec = digits(epochs=100_000)
    spec["program"]["checkpoint"] = {"every_steps": 1_000_000}  # none but those of its stops
    job = client.submit(spec).id
    wait_until(partial(is_past, client, job, 0), 60, partial(client.job, job))

    urgent = client.submit(digits(epochs=1) | {"priority": 50}).id
    wait_for_state(client, urgent, "succeeded", seconds=120)
    wait_for_state(client, job, "running", seconds=120)
    status = client.job(job).status
    assert (status.preemptions, status.retries, status.losses) == (1, 0, 0)
    first, second = client.job(job).attempts()
    assert first.reason is not None
    assert first.reason.code == "preempted"
    assert second.resumed_from is not None
    at_first = second.resumed_from.step
    assert at_first > 0

    wait_until(partial(is_past, client, job, at_first), 60, partial(client.job, job))
    client.job(job).suspend()
    assert wait_for_state(client, job, "queued").reason.code == "suspended"
    assert client.explain(job).summary[0].startswith("queued: suspended")
    other = client.submit(digits(epochs=1)).id
    wait_for_state(client, other, "succeeded", seconds=120)
    assert client.job(job).status.state == "queued"
    client.job(job).resume()
    wait_for_state(client, job, "running", seconds=120)
    nothing, at_first_again, at_second = resumed_steps(client, job)
    assert (nothing, at_first_again) == (None, at_first)
    assert at_second is not None
    assert at_second > at_first
    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")
