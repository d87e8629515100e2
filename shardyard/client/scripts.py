"""Prepares a user's own script for the service: the files that belong to it, and the job spec that runs it."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedRandom
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

from shardyard.bundling import pack
from shardyard.bundling.pack import WrittenBundle
from shardyard.client.connection import private_paths
from shardyard.contract.bundle_rules import may_be_installed
from shardyard.contract.errors import InvalidRequest

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class LocatedProgram:
    """The directory that is sent, the program's file in it (empty: an installed module), and the entry point for the
    job spec."""

    directory: Path
    entry: str
    entrypoint: str


def locate_program(path: str | PathLike[str], entrypoint: str | None = None) -> LocatedProgram:
    """The program at `path`: a file, whose directory is sent, or a directory in which `entrypoint` is a file or module.

    Raises:
        InvalidRequest: it is not there, or no Python program.
    """
    place = Path(path)
    if place.is_file():
        if entrypoint is not None:
            raise InvalidRequest(
                f"{place} is a file; give its directory with entrypoint={entrypoint!r}, or the file alone"
            )
        place, entrypoint = place.parent, place.name
    elif not place.is_dir():
        raise InvalidRequest(f"there is no file or directory {place}")
    elif entrypoint is None:
        raise InvalidRequest(f'{place} is a directory; say what runs in it, for example entrypoint="train.py"')
    if entrypoint.endswith(".py"):
        inside = Path(entrypoint)
        if inside.is_absolute() or ".." in inside.parts or not (place / inside).is_file():
            raise InvalidRequest(f"there is no file {entrypoint} in {place}")
        return LocatedProgram(place, inside.as_posix(), inside.as_posix())
    if not _MODULE.fullmatch(entrypoint):
        raise InvalidRequest(f"entrypoint {entrypoint!r} is neither a .py file nor a module such as pkg.train")
    base = entrypoint.replace(".", "/")
    found = next((file for file in (f"{base}.py", f"{base}/__main__.py") if (place / file).is_file()), None)
    if found is None and may_be_installed(entrypoint, [file.name for file in place.iterdir()]):
        return LocatedProgram(place, "", entrypoint)
    if found is None:
        raise InvalidRequest(f"no module {entrypoint} in {place}: neither {base}.py nor {base}/__main__.py is there")
    return LocatedProgram(place, found, entrypoint)


class ScriptOptions(TypedDict, total=False):
    """Options of a script; those that are left out have the service's defaults."""

    devices: int  # of each node
    nodes: int  # several under ddp and fsdp only
    #: single, dp: one process with all devices; ddp, fsdp: one process per device, as under torchrun. Left out: ddp on
    #: several nodes, else single.
    strategy: str
    rehearse: bool  # on virtual devices as if they were GPUs
    env: Mapping[str, str]
    secrets: Mapping[str, str]  # environment variables whose values are secrets of yours, by their names
    python: str  # a Python environment that the operator offers
    pool: str
    name: str
    labels: Mapping[str, str]
    priority: int
    wall_seconds: float
    max_retries: int
    keep: Sequence[str]  # which of its files are kept, as patterns of .gitignore; empty: none
    artifact_bytes: int  # largest size of these files together
    observe: str  # when shard lines are logged: auto, every or off
    start_after: float | str  # seconds after the submit, or a time with its offset from UTC
    depends_on: Sequence[str]  # ids of jobs that must have succeeded before it starts


def pack_program(
    program: LocatedProgram, include: Sequence[str], exclude: Sequence[str]
) -> tuple[BufferedRandom, WrittenBundle]:
    """The zip of a program's directory, in a temporary file that is deleted when it is closed.

    Raises:
        InvalidRequest: the directory cannot be packed, or the program itself would be left out.
    """
    if (place := program.directory.resolve()) in (Path("/"), Path.home().resolve()):
        raise InvalidRequest(f"all of {place} would be sent; move the program into a directory of its own")
    chosen = pack.select_files(program.directory, program.entry, include, exclude, private=private_paths())
    if program.entry and not any(source.path == program.entry for source in chosen.files):
        raise InvalidRequest(f"{program.entry} would not be sent (see `exclude`); without it there is nothing to run")
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        return file, pack.write_bundle(chosen, file)
    except OSError as error:
        file.close()
        where = tempfile.gettempdir()
        raise InvalidRequest(
            f"cannot write the zip in {where}: {error.strerror}; set TMPDIR to another directory"
        ) from error
    except BaseException:
        file.close()
        raise


def build_script_spec(args: Sequence[str] = (), **options: Unpack[ScriptOptions]) -> dict[str, Any]:
    """The job spec of a script, without its bundle and entry point. Options that are not given are left out."""
    said: dict[str, Any] = {**options}
    if isinstance(said.get("keep"), str):
        raise InvalidRequest("keep takes a list of patterns, for example keep=['*.pt']")
    say = said.get
    wanted = {
        "name": say("name"),
        "pool": say("pool"),
        "priority": say("priority") or None,
        "observe": say("observe"),
        "start_after": say("start_after"),
        "depends_on": list(say("depends_on") or ()),
        "labels": dict(say("labels") or {}),
        "resources": {"devices": say("devices", 1), "nodes": say("nodes")},
        "parallelism": {"strategy": say("strategy") or ("ddp" if (say("nodes") or 1) > 1 else "single")},
        "program": {
            "kind": "script",
            "args": list(args),
            "env": dict(say("env") or {}),
            "secrets": dict(say("secrets") or {}),
            "rehearse": say("rehearse") or None,
            "python": say("python"),
        },
        "limits": {
            "wall_seconds": say("wall_seconds"),
            "max_retries": say("max_retries") or None,
            "artifact_bytes": say("artifact_bytes"),
        },
    }
    spec = _drop_unset(wanted)
    if "keep" in said:  # an empty list says something: nothing is kept
        spec["program"]["keep"] = list(said["keep"])
    return spec


def complete_spec(wanted: Mapping[str, Any], **program: str) -> dict[str, Any]:
    """The spec with more of its program: `bundle`, `entrypoint`, `workdir`."""
    return {**wanted, "program": {**wanted["program"], **program}}


def _drop_unset(wanted: dict[str, Any]) -> dict[str, Any]:
    """The spec without values that were not given, at any depth: the service has the defaults."""
    known = {field: _drop_unset(value) if isinstance(value, dict) else value for field, value in wanted.items()}
    return {field: value for field, value in known.items() if value not in (None, {}, [])}
