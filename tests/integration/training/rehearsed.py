"""Runs a program under rehearsal in processes of its own, forked from a warm forkserver as the service does."""

import multiprocessing
import os
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import jobs

SCRIPTS = Path(jobs.__file__).parents[1] / "examples" / "scripts"
SECONDS = 60.0

_server = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Ran:
    """What one process printed, on both streams, and how it left."""

    code: int | None
    text: str


def run(program: Path, devices: int, *args: str, ranks: int = 1, directory: Path) -> list[Ran]:
    """Run a script with `devices` virtual ones: in one process, or in `ranks` with torchrun's variables.

    With no device nothing is rehearsed: it is a plain run on the CPU. `directory` takes what the processes print. None
    leaves before the programs of all have ended, or one has failed: its peers may still be about to meet it.

    Raises:
        TimeoutError: they have not left after `SECONDS`.
    """
    _server.set_forkserver_preload(["workers.rank.preload"])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    outputs = [directory / f"rank-{rank}.log" for rank in range(ranks)]
    waits, leave = _server.Pipe(duplex=False)
    processes, ended = [], []
    for rank, output in enumerate(outputs):
        told, tells = _server.Pipe(duplex=False)
        arguments = (program, devices, args, rank, ranks, port, output, tells, waits)
        process = _server.Process(target=_rank, args=arguments)
        process.start()
        tells.close()
        processes.append(process)
        ended.append(told)
    waits.close()
    with leave:
        _until_all_have_ended(ended)
    del store
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            for other in processes:
                other.kill()
            raise TimeoutError(f"{program.name} still runs")
    return [Ran(process.exitcode, output.read_text()) for process, output in zip(processes, outputs, strict=True)]


def _until_all_have_ended(ended: list[Connection]) -> None:
    """Or one has failed, or died, or `SECONDS` are over."""
    deadline = time.monotonic() + SECONDS
    while ended and (ready := wait(ended, deadline - time.monotonic())):
        for told in ready:
            assert isinstance(told, Connection)
            try:
                code = told.recv()
            except EOFError:
                return
            if code:
                return
            ended.remove(told)


def run_source(source: str, devices: int, *, ranks: int = 1, directory: Path) -> list[Ran]:
    """The same with a program that is given as text."""
    program = directory / "program.py"
    program.write_text(source)
    return run(program, devices, ranks=ranks, directory=directory)


def _rank(
    program: Path,
    devices: int,
    args: tuple[str, ...],
    rank: int,
    ranks: int,
    port: int,
    output: Path,
    ended: Connection,
    leave: Connection,
) -> None:
    from workers.rank import main_process
    from workers.rehearsal import install
    from workers.runtime import process_groups

    main_process.become_main_process()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if ranks > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}}
        process_groups.retain_groups()
    if devices:
        install.install(devices, rank, ranks)
    code = _run(program, args)
    sys.stdout.flush()
    sys.stderr.flush()
    ended.send(code)
    leave.poll(None)
    os._exit(code)


def _run(program: Path, args: tuple[str, ...]) -> int:
    import runpy
    import traceback

    import torch

    torch.set_num_threads(1)
    sys.argv = [str(program), *args]
    warnings.simplefilter("error")
    try:
        runpy.run_path(str(program), run_name="__main__")
    except BaseException:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        return 1
    return 0
