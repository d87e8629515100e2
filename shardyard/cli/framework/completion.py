"""What a shell completes, asked of the running service: jobs, groups, nodes, pools, states, streams.

A shell waits for it while somebody types. So it asks once, for a moment, and offers nothing when no answer comes.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import typer

from shardyard import formatting

if TYPE_CHECKING:
    from shardyard.client import Client

TIMEOUT_SECONDS = 1.5
#: The newest jobs that are offered.
JOBS = 50
STATES = ("queued", "starting", "running", "succeeded", "failed", "cancelled")
STREAMS = ("all", "stdout", "stderr", "shard", "service")
Words = list[tuple[str, str]]


def complete_jobs(ctx: typer.Context, incomplete: str) -> Words:
    """Names and short ids of the newest jobs, with what they do."""
    words = list(_ask(ctx, _list_jobs))
    return _select(words, incomplete) + ([("@last", "the newest of yours")] if "@last".startswith(incomplete) else [])


def complete_groups(ctx: typer.Context, incomplete: str) -> Words:
    """Names and short ids of the newest comparisons and sweeps, and @last."""
    return _select([*_ask(ctx, _list_groups), ("@last", "the newest of yours")], incomplete)


def complete_nodes(ctx: typer.Context, incomplete: str) -> Words:
    return _select(_ask(ctx, _list_nodes), incomplete)


def complete_pools(ctx: typer.Context, incomplete: str) -> Words:
    return _select(_ask(ctx, _list_pools), incomplete)


def complete_names(ctx: typer.Context, incomplete: str) -> Words:
    """Names of jobs."""
    words = [word for word in _ask(ctx, _list_jobs) if word[1].startswith("the newest")]
    return _select(words, incomplete)


def complete_states(incomplete: str) -> list[str]:
    return _complete_list(STATES, incomplete)


def complete_streams(incomplete: str) -> list[str]:
    return _complete_list(STREAMS, incomplete)


def _complete_list(words: tuple[str, ...], incomplete: str) -> list[str]:
    """The last of several words with commas between them."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in words if word.startswith(last) and word not in before.split(",")]


def _ask(ctx: typer.Context, listing: "Callable[[Client], Iterator[tuple[str, str]]]") -> Words:
    from shardyard.client import Client

    given = _root_params(ctx)
    try:
        with Client(given.get("url"), given.get("token"), attempts=1, timeout=TIMEOUT_SECONDS) as client:
            return list(listing(client))
    except Exception:  # noqa: BLE001  # a message would end between the words that somebody types
        return []


def _root_params(ctx: typer.Context) -> dict[str, Any]:
    return {name: value for name, value in ctx.params.items() if name in ("url", "token") and value}


def _list_jobs(client: "Client") -> Iterator[tuple[str, str]]:
    from shardyard.client import endpoints

    seen: set[str] = set()
    for job in client.call(endpoints.list_jobs(limit=JOBS)).jobs:
        age = formatting.format_age(formatting.seconds_between(job.created_at, None))
        about = formatting.single_line(f"{job.name}, {job.state}, {age} ago")
        yield formatting.short_id(job.id), about
        if job.name not in seen and job.name.isprintable():
            seen.add(job.name)
            yield job.name, f"the newest: {job.state}, {age} ago"


def _list_groups(client: "Client") -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for group in (*client.sweeps(limit=JOBS).sweeps, *client.comparisons(limit=JOBS).comparisons):
        yield formatting.short_id(group.id), formatting.single_line(f"{group.name}, {group.state}")
        if group.name not in seen and group.name.isprintable():
            seen.add(group.name)
            yield group.name, group.state


def _list_nodes(client: "Client") -> Iterator[tuple[str, str]]:
    for node in client.nodes():
        yield node.id, f"{'up' if node.alive else 'down'}, {formatting.count_noun(len(node.devices), 'device')}"


def _list_pools(client: "Client") -> Iterator[tuple[str, str]]:
    for pool in client.pools():
        yield pool.name, formatting.count_noun(pool.devices, "device")


def _select(words: Words, incomplete: str) -> Words:
    return [word for word in words if word[0].startswith(incomplete)]
