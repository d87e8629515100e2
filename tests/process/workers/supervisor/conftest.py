import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.samples.failing_scripts import RUNNER, Fail, run_to_failure


@pytest.fixture(scope="session")
def runner() -> Iterator["subprocess.Popen[str]"]:
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in launcher}
    command = [sys.executable, "-c", RUNNER]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        yield process
        process.communicate(timeout=60)


@pytest.fixture
def fail(runner: "subprocess.Popen[str]", tmp_path: Path) -> Fail:
    return functools.partial(run_to_failure, runner, tmp_path)
