"""Times that tests hold on a machine that does other things, too."""

from collections.abc import Callable


def once_below(limit: float, measure: Callable[[], float], tries: int = 5) -> float:
    """What `measure` gives, which must be less than `limit` in one of some tries, mostly the first: what is slow by
    itself is so in all of them, and what a machine keeps waiting now and then is not.

    Raises:
        AssertionError: it never was.
    """
    found: list[float] = []
    while len(found) < tries:
        found.append(measure())
        if found[-1] < limit:
            return found[-1]
    raise AssertionError(f"not less than {limit:g} in any of {tries} tries: {found}")
