"""Runs a program under rehearsal in processes of its own, forked from a warm forkserver as the service does."""

import multiprocessing
import os
import socket
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

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

    With no device nothing is rehearsed: it is a plain run on the CPU. `directory` takes what the processes print.

    Raises:
        TimeoutError: they have not left after `SECONDS`.
    """
    _server.set_forkserver_preload(["workers.training.preload"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    outputs = [directory / f"rank-{rank}.log" for rank in range(ranks)]
    processes = [
        _server.Process(target=_rank, args=(program, devices, args, rank, ranks, port, output))
        for rank, output in enumerate(outputs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            for other in processes:
                other.kill()
            raise TimeoutError(f"{program.name} still runs")
    return [Ran(process.exitcode, output.read_text()) for process, output in zip(processes, outputs, strict=True)]


def run_source(source: str, devices: int, *, ranks: int = 1, directory: Path) -> list[Ran]:
    """The same with a program that is given as text."""
    program = directory / "program.py"
    program.write_text(source)
    return run(program, devices, ranks=ranks, directory=directory)


def _rank(program: Path, devices: int, args: tuple[str, ...], rank: int, ranks: int, port: int, output: Path) -> None:
    from workers.training import groups, main_process, rehearsal

    main_process.become()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    if ranks > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}}
        groups.keep()
    if devices:
        rehearsal.install(devices, rank, ranks > 1)
    code = _run(program, args)
    sys.stdout.flush()
    sys.stderr.flush()
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
