"""Runs the user's own program in a rank, unchanged: as `python train.py` or `python -m package.train` would.

What the program can see of its process is what it would see there: `__main__`, `sys.argv`, `sys.path`, the working
directory, its environment, and a multiprocessing that takes it for a main process. No torch here: the program, or
the probe that looks on, imports it.
"""

import builtins
import contextlib
import functools
import io
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn, cast

from jobs.protocol.records import MetricSample, Outcome, ProgramProgress
from shardyard.script import job
from workers.probe import descendants, probe
from workers.rank import main_process
from workers.rank.program import RankProgram
from workers.rehearsal import install
from workers.runtime import process_groups, sys_path
from workers.runtime.context import ChannelSink, RankContext
from workers.runtime.import_callbacks import when_imported
from workers.runtime.profile_request import HOLD


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """What to run. `root` is the bundle's working copy, `output` the directory whose files are kept."""

    entrypoint: str
    args: tuple[str, ...]
    root: Path
    output: Path
    strategy: str
    rehearse: bool


def prepare_script(script: ScriptSettings, context: RankContext) -> RankProgram:
    """Make this process the program's own. What comes back runs the program; nothing of ours is imported after this."""
    os.chdir(script.root)
    os.environ["PWD"] = str(script.root)
    main_process.become_main_process()
    stopping = _StopRequest()
    own, context = context, _follow_descendants(script, context)
    device = -1 if context.rank == 0 else context.devices[0].logical
    asked = own.profile_request
    job.connect(
        context.sink.emit,
        stopping,
        script.output,
        device,
        metric=MetricSample,
        progress=ProgramProgress,
        holding=lambda: bool(asked[HOLD]),
    )
    is_file = script.entrypoint.endswith(".py")
    sys_path.set_path((script.root / script.entrypoint).parent if is_file else script.root)
    local_rank = str(context.devices[0].position)
    sys.argv = [script.entrypoint, *(arg.replace("{local_rank}", local_rank) for arg in script.args)]
    sys.orig_argv = [sys.executable, *([] if is_file else ["-m"]), *sys.argv]
    _set_streams(context)
    finish = _install_probe(script, context)
    _report_hard_exits(own, finish)
    return RankProgram(lambda: _run_file(script) if is_file else _run_module(script), finish)


def _install_probe(script: ScriptSettings, context: RankContext) -> Callable[[], None]:
    """Rehearsal first, the probe on top of it. What comes back sends what the probe still owes."""
    when_imported({"torch.distributed.distributed_c10d": lambda _: process_groups.prepare_groups()})
    if script.rehearse:
        install.install(context.lease_size, context.rank, context.world_size)
    seeing = probe.install(context, rehearsed=script.rehearse)
    if isinstance(context.sink, descendants.FamilySink):
        descendants.attach(context.sink, seeing)
    return seeing.finish


def _follow_descendants(script: ScriptSettings, context: RankContext) -> RankContext:
    """The context of a rank whose descendants are heard too, where there is a socket for them."""
    address = os.environ.get(descendants.SOCKET)
    if address is None:
        return context
    return descendants.follow(context, address, str(script.output), rehearsed=script.rehearse)


def _report_hard_exits(context: RankContext, finish: Callable[[], None]) -> None:
    """Have `os._exit` in this very process say how it ends, and send what has been recorded until then."""
    leave, pid, sink = os._exit, os.getpid(), cast(ChannelSink, context.sink)

    def leave_with_word(status: int) -> NoReturn:
        if os.getpid() == pid:
            with contextlib.suppress(Exception):
                finish()
                code = status & 0xFF
                kind = "code_error" if code else ""
                sink.emit(Outcome(context.rank, code, kind, f"os._exit({status})", at=time.time()))
                sink.close()
        leave(status)

    os._exit = functools.wraps(leave)(leave_with_word)


class _StopRequest:
    """Whether SIGTERM has arrived. SIGTERM ends a program, unless the program has called this function."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def __call__(self) -> bool:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        return self._asked.is_set()


def _set_streams(context: RankContext) -> None:
    """Name the streams as Python does. With one device there is nothing to route, so the program gets them plain."""
    if context.streams is not None:
        for which, name in enumerate(("<stdout>", "<stderr>")):
            stream: Any = context.streams.current_stream(which)
            stream.mode, stream.buffer.raw.name = "w", name
        if len(context.devices) == 1:
            sys.stdout, sys.stderr = context.streams.current_stream(0), context.streams.current_stream(1)
    plain: Any = sys
    plain.__stdout__, plain.__stderr__ = sys.stdout, sys.stderr


# -- __main__ --------------------------------------------------------------------------------------


def _run_file(script: ScriptSettings) -> None:
    path = str(script.root / script.entrypoint)
    main = _new_main({"__file__": path, "__cached__": None, "__package__": None})
    main.__loader__ = SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102  (to run it is the point)


def _run_module(script: ScriptSettings) -> None:
    main = _new_main({})
    sys.argv[0] = "-m"  # until it is found, as Python has it
    spec, code = _find_module(script.entrypoint)
    sys.argv[0] = str(spec.origin)
    main.__dict__.update({"__file__": spec.origin, "__cached__": spec.cached, "__package__": spec.parent})
    main.__loader__, main.__spec__ = spec.loader, spec
    exec(code, main.__dict__)  # noqa: S102


def _find_module(name: str) -> tuple[ModuleSpec, CodeType]:
    """
    Raises:
        SystemExit: there is no such module; in Python's words.
    """
    details: Any = runpy
    try:
        _, spec, code = details._get_module_details(name, details._Error)
    except details._Error as error:
        sys.exit(f"{sys.executable}: {error}")
    return spec, code


def _new_main(names: dict[str, Any]) -> ModuleType:
    """A new `__main__`, under its name and under that which multiprocessing gives it."""
    main = types.ModuleType("__main__")
    main.__dict__.update({"__builtins__": builtins, "__annotations__": {}, **names})
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return main
