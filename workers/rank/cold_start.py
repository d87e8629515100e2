"""Starts a rank in a new Python, if the job names an environment of the operator's, or sets variables that libraries
read when they are imported. A rank that was forked warm becomes one by `exec`.

    rank (forked)    waits for the start command as ever; writes down its endpoints and its script; `exec`
    workers/rank/cold_main.py    runs in the new Python, which may have none of our packages; imports this module
    `main`           goes on where the forked rank has left off

The environment may lack what our service needs, so nothing here, or imported from here, may need more than the
standard library and msgspec, which we bring along for a Python like ours (`workers.runtime.import_hook`).
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from jobs.protocol.records import RankUp
from workers.rank import program as endings
from workers.rank.script import ScriptSettings, prepare_script
from workers.runtime import import_hook, sys_path
from workers.runtime.endpoints import RankEndpoints

COLD_MAIN = Path(__file__).with_name("cold_main.py")


@dataclass(frozen=True, slots=True)
class ColdHandover:
    """What a rank knows at the moment of `exec`, beside its environment; `packages` is
    `workers.runtime.import_hook.describe_packages`'s."""

    endpoints: RankEndpoints
    script: ScriptSettings
    packages: str

    def encode(self) -> bytes:
        script = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self.script).items()}
        return json.dumps({"endpoints": self.endpoints.encode(), "script": script, "packages": self.packages}).encode()

    @classmethod
    def decode(cls, found: dict[str, Any]) -> "ColdHandover":
        script = found["script"]
        paths = {name: Path(script[name]) for name in ("root", "output")}
        return cls(
            RankEndpoints.decode(found["endpoints"]),
            ScriptSettings(**script | paths | {"args": tuple(script["args"])}),
            found["packages"],
        )


def exec_python(python: Path, endpoints: RankEndpoints, script: ScriptSettings) -> NoReturn:
    """Go on in another Python. To be called while the process has one thread.

    Raises:
        OSError: there is no such program any more.
    """
    handover_fd = os.memfd_create("handover", 0)
    os.write(handover_fd, ColdHandover(endpoints, script, import_hook.describe_packages()).encode())
    for fd in endpoints.descriptors:
        os.set_inheritable(fd, True)
    os.execv(python, [str(python), str(COLD_MAIN), str(handover_fd)])  # noqa: S606  (no shell; listed by the operator)


# -- below here everything runs in the new Python ----------------------------------------------------


def continue_rank(found: dict[str, Any]) -> Callable[[], NoReturn]:
    """Take over from the forked rank. What comes back runs the script to its end; nothing of ours is imported in it."""
    handover = ColdHandover.decode(found)
    endpoints = handover.endpoints
    for fd in endpoints.descriptors:
        if fd > 2:
            os.set_inheritable(fd, False)
    context, sink = endpoints.open()
    sink.emit(RankUp(endpoints.rank))
    sys_path.know_plain_path(sys.path[1:])
    program = prepare_script(handover.script, context)
    return lambda: endings.run_program(program, context, sink, endpoints.command)
