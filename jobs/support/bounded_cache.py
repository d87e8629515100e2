"""A cache of bounded size: an ordered dictionary whose oldest entries go."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep_newest(cache: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry behind all others. Where there are more than `most` then, the first ones go."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > most:
        cache.popitem(last=False)
