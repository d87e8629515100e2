"""Whether a device can compute."""

import pytest

from jobs.model.records import DeviceRecord
from workers.node.device_check import DeviceChecker

CPU = DeviceRecord(0, "cpu", 0, "cpu:0", "virtual device")
#: No such GPU is anywhere.
GONE = DeviceRecord(1, "cuda", 1, "GPU-00000000-0000-0000-0000-000000000000", "gone")


def test_a_device_that_computes_has_nothing_wrong() -> None:
    assert DeviceChecker().find_fault(CPU) == ""


def test_a_device_that_cannot_compute_says_why_in_one_line() -> None:
    wrong = DeviceChecker().find_fault(GONE)
    assert wrong.startswith("a small computation on it failed: ")
    assert "\n" not in wrong
    assert "cuda" in wrong.lower()


def test_a_computation_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.node.device_check.TEST_PROGRAM", "import signal; signal.pause()")
    assert DeviceChecker(seconds=0.1).find_fault(CPU) == "a small computation on it did not end within 0.1 s"


def test_a_gpu_that_somebody_uses_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {GONE.id: [41, 42]}
    monkeypatch.setattr("workers.node.device_check.processes_on_gpu", lambda gpu: users[gpu])
    assert DeviceChecker().find_fault(GONE) == "in use by process 41, 42, which belongs to no lease"
