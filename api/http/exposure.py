"""Who can reach a server, and the refusal to serve others without the protection that this needs. Imports no
framework: `shardyard up` looks here before anything is started."""

from ipaddress import ip_address


class UnsafeToStart(Exception):
    """The settings would open the service to others without a token, TLS, or a box around jobs."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
