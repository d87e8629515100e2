"""Scripts that fail, run for real, and what a job would know of their errors."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.supervisor.ending import error_hints
from workers.supervisor.ending.hint_rules import FailureContext

CPU = FailureContext(devices=2, device_kind="cpu", strategy="single", rehearsing=False, requirements=False)

# Forks a child for each script, with torch imported once: a script leaves open files, hooks and groups behind.
RUNNER = """
import json, os, runpy, sys, traceback, torch
def fail(folder):
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    try:
        runpy.run_path("train.py", run_name="__main__")
    except BaseException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        text = [f"{type(error).__name__}: {first}", "".join(traceback.format_exception(error))]
        with open("failure", "w") as file:
            json.dump(text, file)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            fail(line.strip())
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


@dataclass(frozen=True)
class Failure:
    """How a script ended: its error as a job words it, the traceback, and the last line that it printed."""

    message: str
    trace: str
    last_line: str

    def advice(self, facts: FailureContext = CPU) -> str:
        return error_hints.explain_error("code_error", self.message, self.trace, facts)


Fail = Callable[[str], Failure]


def run_script(runner: "subprocess.Popen[str]", folder: Path, script: str) -> None:
    """Run the lines as a program, in an empty folder, with nobody at the keyboard."""
    (folder / "train.py").write_text(script)
    assert runner.stdin is not None
    assert runner.stdout is not None
    runner.stdin.write(f"{folder}\n")
    runner.stdin.flush()
    assert runner.stdout.readline() == "ended\n"


def run_to_failure(runner: "subprocess.Popen[str]", folder: Path, script: str) -> Failure:
    """The same of a program that fails."""
    run_script(runner, folder, script)
    assert (folder / "failure").exists(), "the script did not fail"
    message, trace = json.loads((folder / "failure").read_text())
    printed = (folder / "printed").read_text().splitlines()
    return Failure(message, trace, printed[-1] if printed else "")
