"""`python -m workers.node.health`: exit code 0 while the service counts this node as alive. A container's health
check."""

import sys

from jobs import store
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from workers.node.block.allocation import read_settings


def main() -> int:
    settings = read_settings()
    control = RedisStore.from_url(settings.control_url())
    try:
        nodes = control.run(store.read_fleet()).nodes
    except Unavailable as error:
        print(error)
        return 1
    finally:
        control.close()
    if any(node.id == settings.node and node.alive for node in nodes):
        return 0
    print(f"the service does not know node {settings.node}, or gets no heartbeats from it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
