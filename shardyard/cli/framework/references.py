"""Jobs as people name them: by the end of an id, by a name, or as @last. Commands get ids."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardyard import formatting
from shardyard.contract.plain_text import escape_unsafe

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.responses import ResolvedJob

#: Parameters of commands that name a job.
PARAMETERS = ("job", "against")


def takes_references(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which is called with the ids of the jobs that its user has named, if it takes any."""
    taken = [name for name in PARAMETERS if name in inspect.signature(command).parameters]
    if not taken or getattr(command, "resolves_itself", False):
        return command

    @functools.wraps(command)
    def resolved(**given: Any) -> None:
        named = [name for name in taken if given.get(name) and not formatting.is_whole_id(given[name])]
        if named:
            from shardyard.client import Client

            with Client(given.get("url"), given.get("token")) as client:
                given |= {name: find_job_id(client, given[name]) for name in named}
        command(**given)

    return resolved


def resolves_references(command: Callable[..., None]) -> Callable[..., None]:
    """Marks a command that finds the job itself, after it has checked its other arguments."""
    vars(command)["resolves_itself"] = True
    return command


def find_job_id(client: "Client", reference: str) -> str:
    """The id of the job that a reference stands for; says which one that is where several have the name.

    Raises:
        NotFound: none.
        AmbiguousReference: several.
    """
    if formatting.is_whole_id(reference):
        return reference
    from shardyard.client import endpoints

    found = client.call(endpoints.resolve_job(reference))
    for line in _describe_choice(found):
        print(line, file=sys.stderr)
    return found.id


def _describe_choice(found: "ResolvedJob") -> list[str]:
    if found.matched == "last":
        return [f"@last: {escape_unsafe(found.name)} {formatting.short_id(found.id)}"] if sys.stderr.isatty() else []
    if not found.others:
        return []
    older = ", ".join(formatting.short_id(other.id) for other in found.others[:5])
    words = (
        f"several jobs have the name {escape_unsafe(found.name)}: this is the newest, {formatting.short_id(found.id)}; "
        f"before it {older}{', ...' if len(found.others) > 5 else ''}"
    )
    return [words]
