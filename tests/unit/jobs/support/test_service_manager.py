"""What systemd is told, read from a socket as systemd has one."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.support.service_manager import ServiceManager, take_service_manager


@pytest.fixture(params=["file", "abstract"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address that a process is given, and what hears it."""
    path = str(tmp_path / "s")
    name, given = (path, path) if request.param == "file" else (f"\0{path}", f"@{path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(60)
        yield given, manager


def test_it_hears_when_a_service_is_ready_alive_and_stopping(listening: tuple[str, socket.socket]) -> None:
    address, manager = listening
    told = take_service_manager({"NOTIFY_SOCKET": address})
    told.tell_ready("answers requests")
    told.tell_alive()
    told.tell_stopping()
    assert [manager.recv(1024) for _ in range(3)] == [
        b"READY=1\nSTATUS=answers requests",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=stopping",
    ]


def test_processes_that_are_started_later_are_not_asked() -> None:
    environment = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": f"{os.getpid()}", "A": "b"}
    assert take_service_manager(environment) == ServiceManager("/run/n", 60.0)
    assert environment == {"A": "b"}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),  # another process is meant
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_who_it_is_meant_for(given: dict[str, str], seconds: float | None) -> None:
    assert take_service_manager({"NOTIFY_SOCKET": "/run/n"} | given).watchdog_seconds == seconds


@pytest.mark.parametrize("address", [None, "", "relative", "vsock:2:1", "/nowhere/at/all"])
def test_where_nobody_hears_a_service_goes_on(address: str | None) -> None:
    take_service_manager({} if address is None else {"NOTIFY_SOCKET": address}).tell_ready("x")
