"""A cache of bounded size that evicts its least recently used entry."""

from collections import OrderedDict
from typing import Generic, TypeVar

#: Sums over micro-batches, and divisions of steps, that are cached.
MAX_CACHED = 256
#: Ids of splits in the key of an entry: longer ones would fill memory, and come again more seldom.
MAX_KEY = 256

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V, *, size: int = 1) -> V:
        """Returns the value, which is not kept where the `size` of its key is too large."""
        if size > MAX_KEY:
            return value
        self._entries[key] = value
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return value
