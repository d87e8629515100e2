"""Ways for a rank to go wrong. Each is a function that is called in the middle of a step."""

import atexit
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

FOREVER = 3600.0


def note(directory: str, pid: int) -> None:
    """Leave a process id for the test, which then looks whether the process is gone."""
    Path(directory, str(pid)).touch()


def raise_error(notes: str) -> None:
    raise LookupError("this model fails on purpose")


def exit_with_message(notes: str) -> None:
    sys.exit("cannot go on: on purpose")


def exit_with_7(notes: str) -> None:
    sys.exit(7)


def exit_with_0(notes: str) -> None:
    sys.exit(0)


def leave_with_3(notes: str) -> None:
    os._exit(3)


def kill_itself(notes: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(notes: str) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def raise_at_exit(notes: str) -> None:
    atexit.register(_raise)


def _raise() -> None:
    raise LookupError("this exit handler fails on purpose")


def leave_with_3_at_exit(notes: str) -> None:
    atexit.register(os._exit, 3)


def sleep_forever(notes: str) -> None:
    time.sleep(FOREVER)


def wait_for_the_test(notes: str) -> None:
    """Stand still until the test lets the job go (`Service.let_go`), whatever attempt it is in by then."""
    job = os.environ["SHARDYARD_ATTEMPT"].split("/")[1]
    Path(notes).with_name(f"held-{job}").touch()
    while not Path(notes).with_name(f"go-{job}").exists():
        time.sleep(0.005)


def ignore_sigterm(notes: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER)


def fork_daemon(notes: str) -> None:
    """A grandchild in a session of its own that keeps stdout open; the rank goes on."""
    _daemon(notes, lambda: time.sleep(FOREVER))


FLOOD = b"and another line of this flood\n" * 100


def fork_daemon_that_floods(notes: str) -> None:
    """Goes on when the flood has begun."""
    begun, has_begun = os.pipe()
    _daemon(notes, lambda: _print_for_ever(has_begun))
    os.read(begun, 1)


def fork_daemons_and_sleep(notes: str) -> None:
    """Grandchildren in sessions of their own, deaf to SIGTERM; one of them by exec, without open files."""
    _daemon(notes, lambda: ignore_sigterm(notes))
    start_program(notes)
    time.sleep(FOREVER)


def start_program(notes: str) -> None:
    child = subprocess.Popen(["sleep", "3600"], close_fds=True, start_new_session=True, stdout=subprocess.DEVNULL)
    note(notes, child.pid)


def _daemon(notes: str, live: Callable[[], object]) -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        note(notes, os.getpid())
        live()
    os._exit(0)


def _print_for_ever(has_begun: int) -> NoReturn:
    os.write(1, FLOOD)
    os.write(has_begun, b"!")
    while True:
        os.write(1, FLOOD)


def print_200000_lines(notes: str) -> None:
    for number in range(200_000):
        print("line", number)


def fill_memory(notes: str) -> None:
    _limit_memory()
    bytearray(1 << 40)


def fill_memory_with_a_tensor(notes: str) -> None:
    _limit_memory()
    torch.zeros(1 << 38)


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))


def run_a_thread_that_reports_badly(notes: str) -> None:
    """Ends the thread that carries this rank's records, as a bug in it would."""
    import gc

    from workers.runtime.context import ChannelSink

    (sink,) = (found for found in gc.get_objects() if isinstance(found, ChannelSink))
    sink.emit(object())  # type: ignore[arg-type]


def read_open_files(notes: str) -> None:
    """Print what this process has open, and what a program that it starts has open."""
    for number in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            print("open", number, os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    listing = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], close_fds=False, check=True, capture_output=True, text=True
    ).stdout
    for line in listing.splitlines()[1:]:
        print("child", line)


def print_environment(notes: str) -> None:
    for name in sorted(os.environ):
        print("env", name, os.environ[name])


FAULTS: dict[str, Callable[[str], None]] = {
    function.__name__: function
    for function in (
        raise_error,
        exit_with_message,
        exit_with_7,
        exit_with_0,
        leave_with_3,
        kill_itself,
        segfault,
        raise_at_exit,
        leave_with_3_at_exit,
        sleep_forever,
        wait_for_the_test,
        ignore_sigterm,
        fork_daemon,
        fork_daemon_that_floods,
        fork_daemons_and_sleep,
        start_program,
        print_200000_lines,
        fill_memory,
        fill_memory_with_a_tensor,
        run_a_thread_that_reports_badly,
        read_open_files,
        print_environment,
    )
}
