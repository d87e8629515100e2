"""Groups as people name them: by a beginning or an end of an id, by a name, or as @last."""

import re
from typing import TYPE_CHECKING

from shardyard import formatting
from shardyard.contract.errors import Conflict, NotFound

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.groups import Comparison, GroupSummary, Sweep

#: The newest of each kind, among which a group is found that is not named by its whole id.
SEARCHED = 50
LAST = re.compile(r"@last(?:~(\d+))?")


def find_group(client: "Client", reference: str) -> "tuple[str, Comparison | Sweep]":
    """Its kind, and what it is.

    Raises:
        NotFound: there is none.
        Conflict: several have the id that was begun.
    """
    from shardyard.client.groups import endpoints

    group = reference if formatting.is_whole_id(reference) else _choose(list_newest(client), reference)
    for kind, calls in endpoints.BY_KIND.items():
        try:
            return kind, client.call(calls.show(group))
        except NotFound:
            continue
    raise _none(reference)


def list_newest(client: "Client", limit: int = SEARCHED) -> "list[tuple[str, GroupSummary]]":
    """The newest of each kind, with their kind; the newest of all first."""
    from shardyard.client.groups import endpoints

    found: list[tuple[str, GroupSummary]] = [
        *(("comparison", one) for one in client.call(endpoints.list_comparisons(limit=limit)).comparisons),
        *(("sweep", one) for one in client.call(endpoints.list_sweeps(limit=limit)).sweeps),
    ]
    return sorted(found, key=lambda row: row[1].id, reverse=True)


def _choose(newest: "list[tuple[str, GroupSummary]]", reference: str) -> str:
    groups = [group for _, group in newest]
    if last := LAST.fullmatch(reference):
        at = int(last[1] or 0)
        if at < len(groups):
            return groups[at].id
        raise _none(reference)
    if named := [group.id for group in groups if group.name == reference]:
        return named[0]
    begun = [group.id for group in groups if group.id.startswith(reference) or group.id.endswith(reference)]
    if len(begun) > 1:
        raise Conflict(f"{reference!r} stands for several groups: {', '.join(begun)}; give more of the id")
    if not begun or not reference:
        raise _none(reference)
    return begun[0]


def _none(reference: str) -> NotFound:
    return NotFound(f"there is no comparison and no sweep {reference!r}; `shardyard group list` shows yours")
