"""Whether a change would survive its server: how many replicas have it, as Redis' WAIT says.

Replication is asynchronous: a server answers before its replicas have a change, and where it dies then, one that never
had the change takes its place. So where Sentinels may do that, a change counts when WAIT, sent after it on the same
connection, has said that replicas have it. After commands that have changed nothing, WAIT answers at once.
"""

from redis.exceptions import RedisError

from jobs.store.call import Word

#: Longer than a replica ever takes that does its work; less than a connection waits for a reply.
CONFIRM_MILLISECONDS = 1_000


class NotConfirmed(RedisError):
    """The server has made a change, and too few replicas have it."""

    def __init__(self, had: int, wanted: int) -> None:
        super().__init__(f"{had} of {wanted} replicas have confirmed the change within {CONFIRM_MILLISECONDS} ms")


def wait_command(replicas: int) -> tuple[Word, ...]:
    return ("WAIT", replicas, CONFIRM_MILLISECONDS)
