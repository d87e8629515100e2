"""Python environments that the operator lists, in which jobs may run their scripts (`program.python`)."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
CHECK_SECONDS = 60.0
OLDEST = (3, 11)  # our own modules are written for it
#: Asks an environment about itself without importing torch, which takes a second.
_QUESTIONS = """
import json, sys
from importlib.util import find_spec
has = {name: find_spec(name) is not None for name in ("torch", "msgspec")}
print(json.dumps({"version": sys.version_info[:2], "tag": sys.implementation.cache_tag, **has}))
"""


def find_environments(listed: str) -> Mapping[str, Path]:
    """The environments of a setting, `name=/path/to/python,...`, each asked whether scripts can run in it.

    Raises:
        ValueError: an entry is not of this form, or its Python cannot be used; the message says which and why.
    """
    found: dict[str, Path] = {}
    for entry in filter(None, (part.strip() for part in listed.split(","))):
        name, equals, path = entry.partition("=")
        if not equals or not _NAME.fullmatch(name) or not path.startswith("/"):
            raise ValueError(f"environment {entry!r}: write name=/path/to/python, the name in lower case")
        if name in found:
            raise ValueError(f"environment {name!r} is listed twice")
        found[name] = Path(path)
        why_not = _find_fault(found[name])
        if why_not:
            raise ValueError(f"environment {name!r}: {path} {why_not}")
    return found


def _find_fault(python: Path) -> str:
    """Why scripts cannot run in an environment; "" if they can."""
    command = [str(python), "-c", _QUESTIONS]
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_SECONDS, cwd="/")
        facts = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"is not a working Python: {error}"
    if tuple(facts["version"]) < OLDEST:
        return (
            f"is Python {facts['version'][0]}.{facts['version'][1]}; {OLDEST[0]}.{OLDEST[1]} is the oldest that works"
        )
    if not facts["torch"]:
        return f"has no torch; install it there: {python} -m pip install torch"
    if not facts["msgspec"] and facts["tag"] != sys.implementation.cache_tag:
        return f"needs msgspec, as it is another Python than the service's: {python} -m pip install msgspec"
    return ""


def choose_python(environments: Mapping[str, Path], name: str | None) -> Path:
    """The Python of a job that starts cold; the service's own where it names none.

    Raises:
        LookupError: the node has no environment of that name; the message is for the user.
    """
    if name is None:
        return Path(sys.executable)
    if name in environments:
        return environments[name]
    known = ", ".join(sorted(environments)) or "none"
    raise LookupError(
        f"program.python: this node has no environment {name!r} (it has: {known}); an operator adds one with "
        f"`shardyard worker --env {name}=/path/to/python`, or in SHARDYARD_ENVIRONMENTS"
    )
