"""What is imported by the package, the client and the command line, and what is generated from what."""

import subprocess
import sys

from tools import generate_sync_client


def test_the_blocking_client_is_generated_from_the_awaiting_one() -> None:
    assert generate_sync_client.main(["--check"]) == 0


def test_importing_the_package_loads_nothing_and_the_client_no_torch() -> None:
    program = """
import sys
import traceback
before = {name.partition(".")[0] for name in sys.modules}
import shardyard
from shardyard import job
new = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
from shardyard import Client, SplitReport
heavy = {"torch", "redis", "celery", "fastapi", "typer", "pandas"} & set(sys.modules)
print(sorted(new), sorted(heavy), "Client" in dir(shardyard))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['shardyard'] [] True"


def test_the_command_line_loads_nothing_slow_before_a_command_needs_it() -> None:
    slow = {"httpx", "pathspec", "pydantic", "msgspec", "redis", "celery", "asyncio", "torch", "rich.progress"}
    program = f"import sys, shardyard.cli; print(sorted({slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
