"""The rendezvous of an attempt's ranks: a port that is bound before they are forked, and the store served on it."""

import socket


def bind_port(address: str) -> socket.socket:
    """A listening socket on a free port of the node's address, and on no other: the store by itself would listen on
    every interface."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(1024)
    return listener


def serve_store(listener: socket.socket) -> object:
    """Serve the store through which the ranks find each other, for as long as the object lives."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listener.getsockname()[:2]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
