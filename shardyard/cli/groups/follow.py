"""Follows a group of jobs until it has ended, and prints its report."""

import sys
import time
from typing import TYPE_CHECKING

import typer

from shardyard.cli.common import make_console, print_json
from shardyard.formatting import count_noun

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.groups import GroupSummary

#: Between two looks at a group.
POLL_SECONDS = 0.5


def print_started(group: "GroupSummary") -> None:
    """A new group: in words in a terminal, its id alone in a pipe."""
    if sys.stdout.isatty():
        make_console().print(f"{group.name}: {count_noun(group.jobs, 'job')}, {group.id}", markup=False)
    else:
        print(group.id)  # for scripts


def follow_group(client: "Client", kind: str, group: str, *, as_json: bool = False) -> None:
    """Ctrl-C leaves the group running. Exit code 1 where no job of it succeeded."""
    from shardyard.client.groups import endpoints

    show = endpoints.BY_KIND[kind].show
    last, found = "", client.call(show(group))
    while True:
        words = describe_progress(found)
        if words != last and not as_json:
            make_console().print(words, markup=False, highlight=False)
        last = words
        if found.ended:
            break
        time.sleep(POLL_SECONDS)
        found = client.call(show(group))
    print_report(client, kind, group, as_json=as_json)
    if found.state != "succeeded":
        raise typer.Exit(1)


def describe_progress(group: "GroupSummary") -> str:
    ended = sum(count for state, count in group.counts.items() if state not in ("queued", "starting", "running"))
    failed = group.counts.get("failed", 0)
    expected = max(group.jobs, getattr(group, "planned", 0))  # a sweep that Optuna leads has fewer jobs at first
    words = f"{group.name}: {group.state}, {ended} of {count_noun(expected, 'job')} ended"
    return f"{words}, {failed} of them failed" if failed else words


def print_report(client: "Client", kind: str, group: str, *, as_json: bool) -> None:
    from shardyard.client.groups import endpoints

    calls = endpoints.BY_KIND[kind]
    if as_json:
        return print_json(client.json(calls.report(group)))
    return make_console().print(
        client.call(calls.draw(group, "text/plain")).rstrip("\n"), markup=False, highlight=False, soft_wrap=True
    )
