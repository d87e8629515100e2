"""SIGTERM of an engine that ends a node of a block.

Some engines send it to every process there at once, to ranks as well: it reaches supervisors before they hear of it by
way of Redis, and what ranks do of it is no failure of theirs.
"""

import signal
import threading

_sent = threading.Event()


def heed_stop_signal() -> None:
    """Take note of SIGTERM from now on. Call it in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: _sent.set())


def is_stop_signalled() -> bool:
    return _sent.is_set()
