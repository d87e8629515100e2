"""How a node reaches others, by the address that its rendezvous stores listen on.

Nodes of the same reach can run one job together: all on the network, or those on one machine's loopback.
"""

import ipaddress
import os
from pathlib import Path

NETWORK = "network"

#: Addresses that no node can have: of this network, and reserved, with the one of all nodes.
_UNUSABLE = (ipaddress.IPv4Network("0.0.0.0/8"), ipaddress.IPv4Network("240.0.0.0/4"))


def identify_loopback() -> str:
    """A name that all processes have which share this one's loopback, and no others: two hosts may have one host name,
    and containers of one host have loopbacks of their own. "" where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


def find_reach(address: str, loopback: str) -> str:
    """How a node whose loopback has that name reaches others that have the same answer: `network`, or
    `loopback:<name>` where its address is one of those.

    Empty where others could not be sure to reach it: for a name, which may mean another address elsewhere, for
    addresses that stand for any or for many nodes, and for what is no address.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_unspecified or found.is_multicast or any(found in network for network in _UNUSABLE):
        return ""
    if isinstance(found, ipaddress.IPv6Address) and found.is_link_local:
        return ""  # it means something with an interface only, and each host has its own
    if found.is_loopback:
        return f"loopback:{loopback}" if loopback else ""
    return NETWORK
