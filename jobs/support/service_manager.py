"""Tells systemd how far this process is, if systemd has started it (`Type=notify`, sd_notify): datagrams to a socket.

READY=1      it serves: units that come after it start, and `systemctl start` returns
STOPPING=1   it has begun to end
WATCHDOG=1   it is alive; with WatchdogSec= systemd ends and restarts one that has not said so for that long
STATUS=...   a line for `systemctl status`
"""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG, _WATCHDOG_PID = "WATCHDOG_USEC", "WATCHDOG_PID"


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """`address` is "" where nobody is to be told."""

    address: str = ""
    watchdog_seconds: float | None = None

    def tell(self, *lines: str) -> None:
        """Send it, or let it be: a service does not fail because it is not watched."""
        if not self.address:
            return
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)  # a manager that does not read must not hold us up
            sender.sendto("\n".join(lines).encode(), name)

    def tell_ready(self, status: str) -> None:
        self.tell("READY=1", f"STATUS={status}")

    def tell_stopping(self) -> None:
        self.tell("STOPPING=1", "STATUS=stopping")

    def tell_alive(self) -> None:
        self.tell("WATCHDOG=1")


def take_service_manager(environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
    """Who is to be told. What says so leaves the environment: processes that are started from here, and jobs, have not
    been asked."""
    address = environment.pop(_SOCKET, "")
    microseconds, pid = environment.pop(_WATCHDOG, ""), environment.pop(_WATCHDOG_PID, "")
    if not address.startswith(("/", "@")):
        return ServiceManager()
    watched = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
    return ServiceManager(address, int(microseconds) / 1e6 if watched else None)
