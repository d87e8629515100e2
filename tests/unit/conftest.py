"""Unit tests start no process: those that do stand under tests/process."""

import os
import subprocess
from typing import Any, NoReturn

import pytest


@pytest.fixture(autouse=True)
def start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail("a unit test starts no process; move it to tests/process")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(os, "fork", refuse)
