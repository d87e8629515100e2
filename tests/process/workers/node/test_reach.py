"""Whose loopback is the same, with processes in network namespaces of their own."""

import subprocess
import sys

import pytest

from workers.node.reach import find_reach, identify_loopback

SAY = [sys.executable, "-c", "from workers.node.reach import identify_loopback; print(identify_loopback())"]


def said_by(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def test_processes_of_one_network_namespace_have_one_loopback() -> None:
    assert identify_loopback()
    assert said_by(*SAY) == identify_loopback()


def test_a_process_in_a_network_namespace_of_its_own_has_another_loopback() -> None:
    unshare = ("unshare", "--user", "--map-root-user", "--net")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True, timeout=60).returncode != 0:
        pytest.skip("network namespaces cannot be made here")
    other = said_by(*unshare, *SAY)
    assert other
    assert find_reach("127.0.0.1", other) != find_reach("127.0.0.1", identify_loopback())
