"""What a report says of hosts whose clocks differ: each writes the times of its own log lines."""

from collections.abc import Mapping

#: Clocks that are closer to each other are not mentioned; what the link estimates is right to some milliseconds.
MIN_OFFSET_SECONDS = 0.1
#: Nodes that are named.
MAX_NAMED = 8


def describe_clocks(leader: str, offsets: Mapping[str, float]) -> str:
    """How far clocks are ahead of the leader's, where that shows; "" where it does not. `offsets` are in seconds."""
    wrong = {node: offset for node, offset in offsets.items() if abs(offset) >= MIN_OFFSET_SECONDS}
    if not wrong:
        return ""
    worst = sorted(wrong, key=lambda node: -abs(wrong[node]))[:MAX_NAMED]
    named = ", ".join(f"{node}'s is {_describe_offset(wrong[node])}" for node in worst)
    more = f", and {len(wrong) - len(worst)} more differ" if len(wrong) > len(worst) else ""
    return (
        f"the clocks of the nodes differ, and log lines have their own node's time: relative to {leader}'s, "
        f"{named}{more}"
    )


def _describe_offset(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'}"
