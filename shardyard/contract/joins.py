"""Answers to machines that join."""

from shardyard.contract.responses import Answer


class NodeSetup(Answer, frozen=True, kw_only=True):
    """What a node needs. Not shown by `repr`, which ends up in logs.

    `token` has the scope `node`, and is empty where the node said that it has one. The URLs of Redis have passwords;
    whoever uses them adds the file of `authority`, the PEM text of what signs the service's certificates. `torch` is
    the version on the host of the API, if it has one. `address_seen` is where the request came from, `alive_on` the
    host of a live node with the same name, and `now_us` the service's clock: microseconds since the epoch."""

    node: str
    token: str
    url: str
    redis_url: str
    telemetry_url: str
    supervisor_redis_url: str
    supervisor_telemetry_url: str
    authority: str
    secret_keys: str
    version: str
    torch: str
    address_seen: str
    alive_on: str
    now_us: int

    def __repr__(self) -> str:
        return f"NodeSetup(node={self.node!r}, url={self.url!r})"


class NodeReachView(Answer, frozen=True, kw_only=True):
    """Whether the service's host reaches a joining node at `address`; `why` not."""

    reached: bool
    address: str
    why: str = ""
