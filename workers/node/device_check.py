"""Checks whether a device can be leased again: no process uses it, and a small computation on it in a separate process
ends well."""

import os
import subprocess
import sys
import tempfile
from typing import IO

from jobs.model.records import DeviceRecord
from workers.node.devices import processes_on_gpu

#: Torch is imported first, perhaps from a cold disk.
TEST_SECONDS = 60.0
KILL_SECONDS = 5.0
#: How much of the end of what the process said is looked at.
LAST_WORDS_BYTES = 4096

TEST_PROGRAM = """
import sys
import torch
device = torch.device(sys.argv[1])
ones = torch.ones(512, 512, device=device)
total = (ones @ ones).sum().item()
if total != 512.0 ** 3:
    raise SystemExit(f"a product of matrices came out wrong: {total}")
"""


class DeviceChecker:
    """Tries devices. A trial that cannot be killed, as with a driver that hangs, is not joined by a second one."""

    def __init__(self, seconds: float = TEST_SECONDS) -> None:
        self._seconds = seconds
        self._stuck: dict[int, subprocess.Popen[bytes]] = {}

    def find_fault(self, device: DeviceRecord) -> str:
        """Why a device cannot be given out; "" when it can. Takes so many seconds at most. Nothing may hold a lease on
        it: whatever computes there has no business to."""
        before = self._stuck.get(device.index)
        if before is not None and before.poll() is None:
            return f"process {before.pid}, which tests it, cannot be killed"
        self._stuck.pop(device.index, None)
        if users := processes_on_gpu(device.id) if device.kind == "cuda" else []:
            return f"in use by process {', '.join(map(str, users[:5]))}, which belongs to no lease"
        with tempfile.TemporaryFile() as said:
            process = _start_test(device, said)
            try:
                code = process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                self._kill_test(device, process)
                return f"a small computation on it did not end within {self._seconds:g} s"
            return "" if code == 0 else f"a small computation on it failed: {_last_line(said) or f'exit code {code}'}"

    def _kill_test(self, device: DeviceRecord, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck[device.index] = process


def _start_test(device: DeviceRecord, said: IO[bytes]) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    seen = {"CUDA_VISIBLE_DEVICES": device.id if device.kind == "cuda" else ""}
    where = "cuda:0" if device.kind == "cuda" else "cpu"
    return subprocess.Popen(
        [sys.executable, "-I", "-c", TEST_PROGRAM, where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        env=inherited | seen,
        start_new_session=True,
    )


def _last_line(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else ""
