"""How a program ended, as `python program.py` would report it, and what the interpreter does after that.

Needs the standard library and `jobs.protocol.records` alone: ranks of other Python environments use it too.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TextIO

from jobs.protocol.records import Outcome, ProgramBegan, Returned
from workers.runtime.collectives import report_calls
from workers.runtime.context import ChannelSink, NullSink, RankContext, RecordSink, RejectedByWorker, StopTraining
from workers.runtime.ordered_pipe import OrderedPipe

MAX_TRACEBACK = 64 * 1024
MAX_MESSAGE = 2000
#: How long a traceback waits until what was recorded before it is sent.
SEND_SECONDS = 1.0
#: Traces of these files are not the user's business: our own, and what Python itself runs a module with.
_ROOT = Path(__file__).resolve().parents[2]
_SERVICE_DIRECTORIES = tuple(f"{_ROOT / name}/" for name in ("api", "jobs", "workers", "shardyard"))
_RUNNERS = ("<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_HIDDEN_FILES = (*_SERVICE_DIRECTORIES, *_RUNNERS)
#: A program may put a function of its own in its place.
_exit_process = os._exit
#: A traceback that an error carries in its message, from another process.
_EMBEDDED = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class RankProgram:
    """What a rank runs. Under `strict`, an exit handler that raises turns success into failure; `python` says
    nothing of it in its exit code. `finish` comes after everything that the program does."""

    run: Callable[[], object]
    finish: Callable[[], None] = lambda: None
    strict: bool = False


def run_program(program: RankProgram, context: RankContext, sink: ChannelSink, command: int) -> NoReturn:
    """Run a program, do what the interpreter does at its end, report, and leave when the supervisor says so.

    What is reported is all that happened: the word to leave, not a collective, is the ranks' closing barrier.
    A child that the program has forked comes here too, if it ends as the program does; it reports to no process.
    """
    me, rank = os.getpid(), context.rank
    sink.emit(ProgramBegan(time.time()))
    outcome = _run_to_outcome(partial(_run_and_send, program.run, sink, me), rank)
    report: RecordSink = sink if os.getpid() == me else NullSink()
    report.emit(Returned(outcome, "threads", time.time()))
    if outcome.exit_code and report is sink:
        sink.flush()  # the others may fail next, of this
    with contextlib.suppress(BaseException):  # a KeyboardInterrupt ends the wait, as in Python
        threading._shutdown()  # type: ignore[attr-defined]
    report.emit(Returned(outcome, "handlers", time.time()))
    outcome = _run_exit_handlers(outcome, rank, strict=program.strict)
    program.finish()
    if context.streams is not None:
        with contextlib.suppress(ValueError):  # the program has closed one
            context.streams.flush()  # it may also have put others in their place
    ctypes.CDLL(None).fflush(None)
    if report is sink:
        sink.emit(outcome)
        sink.close()
        with contextlib.suppress(OSError):  # a program may close descriptors that are not its own
            os.read(command, 1)  # or end of file; the supervisor has the deadline
    _exit_process(outcome.exit_code)


def _run_and_send(program: Callable[[], object], sink: ChannelSink, owner: int) -> None:
    """Run a program. If it fails, what it has recorded is sent before its traceback is printed: the log then ends with
    the traceback, not with lines about steps. The sink is that of the process `owner`, not of its forked children."""
    try:
        program()
    except Exception:
        if os.getpid() == owner:
            report_calls(sink.emit)
            sink.flush(SEND_SECONDS)
        raise


def _run_to_outcome(program: Callable[[], object], rank: int) -> Outcome:
    """Run a program, and say how it ended. What it has not caught is printed on stderr, beginning at its own code."""
    try:
        program()
    except StopTraining:
        return Outcome(rank, -signal.SIGTERM, "stopped", "stopped between two steps")
    except RejectedByWorker as error:
        return _failed_outcome(rank, "rejected_by_worker", error)
    except SystemExit as error:
        return _exit_outcome(rank, error.code)
    except KeyboardInterrupt as error:
        return _failed_outcome(rank, "code_error", error, 128 + signal.SIGINT)
    except BaseException as error:  # noqa: BLE001  (whatever the program raises is its outcome)
        return _failed_outcome(rank, "out_of_memory" if _is_out_of_memory(error) else "code_error", error)
    return Outcome(rank, 0)


def _run_exit_handlers(outcome: Outcome, rank: int, *, strict: bool) -> Outcome:
    """Run exit handlers and flush, as the interpreter does: `os._exit` will not."""
    raised: list[BaseException] = []

    def remember(event: "sys.UnraisableHookArgs") -> None:
        if event.exc_value is not None:
            raised.append(event.exc_value)
        sys.__unraisablehook__(event)

    before, sys.unraisablehook = sys.unraisablehook, remember if strict else sys.unraisablehook
    try:
        atexit._run_exitfuncs()
    except BaseException as error:  # noqa: BLE001  (an exit handler may raise anything)
        raised.append(error)
    finally:
        sys.unraisablehook = before
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if strict and raised and outcome.exit_code == 0:
        return _failed_outcome(rank, "code_error", raised[0])
    return outcome


def _failed_outcome(rank: int, kind: str, error: BaseException, exit_code: int = 1) -> Outcome:
    """The outcome of a program that `error` ended; its traceback goes to stderr, as Python would print it."""
    if kind == "rejected_by_worker":  # the spec is wrong, not the program: our own stack would only bury the words
        return Outcome(rank, 1, kind, _safe_text(error)[:MAX_MESSAGE])
    trace = traceback.TracebackException.from_exception(error)
    _keep_user_frames(trace)
    text = _escape_surrogates("".join(trace.format()))[-MAX_TRACEBACK:]
    _print_error(error, text)
    return Outcome(rank, exit_code, kind, _error_summary(error)[:MAX_MESSAGE], text)


def _exit_outcome(rank: int, code: object) -> Outcome:
    """`sys.exit(code)`: nothing or a number is the exit code, of which the system keeps a byte; else a last word."""
    if code is None or isinstance(code, int):
        status = (code or 0) & 0xFF
        return Outcome(rank, status, "code_error" if status else "", f"sys.exit({code})" if status else "")
    with contextlib.suppress(Exception):
        print(code, file=sys.stderr)
    return Outcome(rank, 1, "code_error", _safe_text(code)[:MAX_MESSAGE])


def _is_out_of_memory(error: BaseException) -> bool:
    """torch's own class is known by its name, since torch need not be there; for main memory it has none."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator" in _safe_text(error)


def _keep_user_frames(trace: traceback.TracebackException) -> None:
    """Take frames of ours out of a traceback, and of those that led to it."""
    todo: list[traceback.TracebackException | None] = [trace]
    while todo:
        one = todo.pop()
        if one is None:
            continue
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_HIDDEN_FILES)]
        todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())]


def _print_error(error: BaseException, text: str) -> None:
    """As Python does it: by the program's own hook where it has set one."""
    with contextlib.suppress(Exception):
        _end_line(sys.stdout)
    with contextlib.suppress(Exception):  # there may be no stderr any more
        if sys.excepthook is sys.__excepthook__:
            sys.stderr.write(text)
            return
        try:
            trace = _user_traceback(error.__traceback__)
            sys.excepthook(type(error), error.with_traceback(trace), trace)  # which of the two is printed depends
        except BaseException:  # noqa: BLE001  (a hook may raise anything; Python prints both then)
            sys.stderr.write(text)


def _end_line(stream: TextIO) -> None:
    """Flush a stream and end its last line, which would otherwise come to the log after the traceback."""
    stream.flush()
    raw = getattr(stream.buffer, "raw", None)
    if isinstance(raw, OrderedPipe) and raw.has_open_line:
        stream.write("\n")


def _user_traceback(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HIDDEN_FILES):
        trace = trace.tb_next
    return trace


def _error_summary(error: BaseException) -> str:
    """One line: the error's first, or the last one of an error that came from another process with its traceback."""
    lines = _safe_text(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    if _EMBEDDED in _safe_text(error):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"


def _safe_text(thing: object) -> str:
    """`str`, which a program's own class may have wrong."""
    try:
        return _escape_surrogates(str(thing))
    except Exception:  # noqa: BLE001  (whatever it raises)
        return f"<a {type(thing).__name__} that cannot be printed>"


def _escape_surrogates(text: str) -> str:
    """Without the halves of characters that stand for undecodable bytes, for example of file names."""
    return text.encode("utf-8", "backslashreplace").decode()
