"""Which interface of this host has an address: gloo and NCCL by themselves may choose one that others do not reach."""

import ipaddress
import os
import socket

import psutil

from workers.rank.process import INTERFACE_VARIABLES, rendezvous_variables

LOOPBACK = "lo"


def find_interface(address: str) -> str:
    """The interface with this address; "" where none has it. All of 127.0.0.0/8 is the loopback's."""
    wanted = ipaddress.ip_address(address)
    if wanted.is_loopback:
        return LOOPBACK
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            is_address = one.family in (socket.AF_INET, socket.AF_INET6)
            if is_address and ipaddress.ip_address(one.address.partition("%")[0]) == wanted:
                return str(name)
    return ""


def variables_of_node(own_address: str, master_address: str, master_port: int) -> dict[str, str]:
    """What tells a rank of this node where to meet the others, and through which interface: an operator's own choice,
    made in the worker's environment, counts."""
    chosen = {name: os.environ[name] for name in INTERFACE_VARIABLES if os.environ.get(name)}
    return rendezvous_variables(master_address, master_port, find_interface(own_address)) | chosen
