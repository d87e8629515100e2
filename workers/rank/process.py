"""What runs in a rank: one training process, from the fork to `os._exit`.

The supervisor forks it, it gives up everything that is not its own, waits for the start command, runs
the program, and leaves only at the supervisor's exit command, when all ranks are done. That command, not a
collective, is the closing barrier: with torch 2.13 the usual endings of a gloo group deadlock now
and then (pytorch#190489).
"""

import fcntl
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from jobs.files.log_file import StreamName
from jobs.model.spec import JobSpec, ScriptProgram
from jobs.protocol.records import RankUp
from workers.rank import cold_start
from workers.rank import program as endings
from workers.rank.script import ScriptSettings
from workers.runtime import collectives
from workers.runtime.context import RankContext, RankDevice
from workers.runtime.endpoints import RankEndpoints
from workers.runtime.launch import PRIVATE_STORE, AttemptConfig, StartMessage, attempt_variable
from workers.runtime.private_store import STORE_VARIABLE
from workers.runtime.process_control import ask_for_death_signal, close_all_but, drop_privileges, name_process
from workers.sandbox import run_as
from workers.sandbox.box.confinement import OOM_SCORE_JOB, confine_process, set_oom_score
from workers.sandbox.keyrings import join_new_keyring

if TYPE_CHECKING:
    from workers.training.entry import RecipeParts

#: Descriptors of ours in a rank are from here on.
FIRST_FD = 200
#: Exit code of a rank whose supervisor died before the program ran.
EXIT_ORPHANED = 98
#: The service keeps its files to itself; a program's own have the modes that they have elsewhere.
DEFAULT_UMASK = 0o022

#: What a rank may see of the worker's environment. Everything else is set by us or not at all.
INHERITED_VARIABLES = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE")


#: Which interface the backends talk through.
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")

STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """Descriptors that all ranks of an attempt have."""

    lock: int  # stays open
    start_message: int
    profile_request: int


@dataclass(slots=True)
class RankPipes:
    """Both ends of everything between the supervisor and one rank."""

    channel: tuple[int, int]
    command: tuple[int, int]
    outputs: dict[tuple[int, StreamName], tuple[int, int]]  # (logical device, stream) -> read end, write end


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a rank that is in a box gives up beside its account; `syscalls` is the filter, where there is one."""

    syscalls: bytes | None


def run_rank(
    config: AttemptConfig,
    number: int,
    pipes: RankPipes,
    shared: SharedFiles,
    supervisor: int,
    port: int | None,
    confinement: Confinement | None = None,
) -> NoReturn:
    """`supervisor` is the process that forked it, with which it dies; `confinement` None: it is in no box."""
    _die_with_supervisor(supervisor)
    os.setpgid(0, 0)  # a program that signals its own group does not mean the supervisor
    name_process(f"sy-rank-{number}")
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as in any Python program
    command, channel, request, streams = _keep_own_descriptors(config, number, pipes, shared)
    written = [fd for pair in streams for fd in pair]
    set_oom_score(OOM_SCORE_JOB)
    if confinement is not None:
        confine_process(config.account, confinement.syscalls, written)
    elif config.account is not None:
        run_as.confine_rank(config.account, written)
    else:
        join_new_keyring()
    drop_privileges()
    _die_with_supervisor(supervisor)  # a change of account forgets it
    os.umask(DEFAULT_UMASK)
    _set_variables(config, number, port)

    endpoints = RankEndpoints(
        rank=number,
        world_size=config.world_size,
        devices=_devices_of(config, number),
        lease_size=len(config.devices),
        threads=config.threads,
        channel=channel,
        command=command,
        streams=tuple(streams),
        profile_request=request,
    )
    if config.python is not None:
        message = _await_start(command, shared.start_message)
        _add_variables(config, message)
        cold_start.exec_python(config.python, endpoints, _script_settings(config.spec, message))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    context, sink = endpoints.open(stopping.is_set, config.data_root)
    parts = _prebuild_parts(config.spec, context)
    message = _await_start(command, shared.start_message)
    _add_variables(config, message)
    context = replace(context, checkpoints=endpoints.checkpoint_access(message.drafts, message.resume))
    endings.run_program(_prepare_program(config.spec, message, context, parts), context, sink, command)


def _devices_of(config: AttemptConfig, number: int) -> tuple[RankDevice, ...]:
    first = config.first_device
    return tuple(RankDevice(index, device.kind, device.id, first) for index, device in config.devices_of(number))


def _prebuild_parts(spec: JobSpec, context: RankContext) -> "RecipeParts | None":
    """Say that the rank is up, and build what a recipe of ours needs of its spec alone, while the supervisor claims."""
    from workers.training import entry

    context.sink.emit(RankUp(context.rank))
    if not entry.runs_only_our_code(spec):
        return None
    try:
        return entry.build_parts(spec, context)
    except Exception:  # noqa: BLE001  (it fails again after the start command, and is reported then)
        return None


def _script_settings(spec: JobSpec, message: StartMessage) -> ScriptSettings:
    program, directory = spec.program, message.working_directory
    assert isinstance(program, ScriptProgram)
    assert directory is not None
    strategy = spec.parallelism.strategy
    start = directory.root / program.workdir
    return ScriptSettings(program.entrypoint, program.args, start, directory.output, strategy, program.rehearse)


def _prepare_program(
    spec: JobSpec, message: StartMessage, context: RankContext, parts: "RecipeParts | None"
) -> endings.RankProgram:
    """What the rank is to run, with all that it needs imported."""
    import torch

    from workers.rank import script
    from workers.runtime import sys_path
    from workers.training import entry

    if isinstance(spec.program, ScriptProgram):
        torch.set_num_threads(context.threads)
        return script.prepare_script(_script_settings(spec, message), context)
    if message.working_directory is not None:
        sys_path.set_path(message.working_directory.root)
    return endings.RankProgram(lambda: entry.run_recipe(spec, context, parts), strict=True)


def _die_with_supervisor(supervisor: int) -> None:
    """Ask for SIGKILL when the supervisor dies. It may have died before we asked."""
    ask_for_death_signal(signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(EXIT_ORPHANED)


def _keep_own_descriptors(
    config: AttemptConfig, number: int, pipes: RankPipes, shared: SharedFiles
) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Keep this rank's ends and the lock, close every other descriptor, and put the first device's
    pipes on 1 and 2, where C code and child processes write.

    Returns:
        the command pipe, the channel, the request for a profile, and one (stdout, stderr) pair per device of this rank.
    """
    own = {pipes.command[0], pipes.channel[1], *astuple(shared)} | {
        write_end for _, write_end in pipes.outputs.values()
    }
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    close_all_but(own)
    pairs = []
    for index, (device, _) in enumerate(config.devices_of(number)):
        out, err = (pipes.outputs[device, stream][1] for stream in STREAMS)
        if index == 0:
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            out, err = 1, 2
        pairs.append((out, err))
    os.set_inheritable(_move_up(shared.lock), True)  # what is started without closing files keeps the mark
    return _move_up(pipes.command[0]), _move_up(pipes.channel[1]), _move_up(shared.profile_request), pairs


def _move_up(fd: int) -> int:
    """Move a descriptor up, where programs that close or count on the first ones do not meet it."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
    os.close(fd)
    return moved


def _await_start(command: int, message_fd: int) -> StartMessage:
    """Block until the supervisor's start command. End of file: it has died."""
    if not os.read(command, 1):
        os._exit(EXIT_ORPHANED)
    body = os.pread(message_fd, os.fstat(message_fd).st_size, 0)
    os.close(message_fd)
    return StartMessage.decode(body)


def _set_variables(config: AttemptConfig, number: int, port: int | None) -> None:
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    os.environ.clear()
    os.environ.update(kept)
    os.environ.update(rank_variables(config, number, port))


def _add_variables(config: AttemptConfig, message: StartMessage) -> None:
    directory = message.working_directory
    if directory is not None:
        os.environ.update(
            TMPDIR=str(directory.temporary),
            SHARDYARD_OUTPUT_DIR=str(directory.output),
            SHARDYARD_PROBE_SOCKET=str(directory.socket),
        )
        if directory.resume is not None:
            os.environ["SHARDYARD_RESUME_DIR"] = str(directory.resume)
    if config.account is not None or config.boxed:
        os.environ["HOME"] = str(directory.temporary) if directory is not None else "/nonexistent"
    if config.account is not None:
        os.environ.update(USER=config.account.name, LOGNAME=config.account.name)
    own = config.spec.program.env if isinstance(config.spec.program, ScriptProgram) else {}
    if directory is not None and config.devices[0].kind == "cuda":
        is_cold = config.python is not None
        os.environ.update(collectives.recorder_variables(directory.output, own, every_name=is_cold))
    os.environ.update(message.rendezvous)
    os.environ.update(own)
    os.environ.update(message.secrets)


def rank_variables(config: AttemptConfig, number: int, port: int | None) -> Mapping[str, str]:
    """The variables of a rank: torchrun's whole set under ddp and fsdp, none of them otherwise, since
    a program that starts its own ranks would wait for a master that is not there. Where ranks of several nodes meet
    is known later (`StartMessage.rendezvous`)."""
    mark, value = attempt_variable(config.attempt)
    gpus = ",".join(device.id for device in config.devices if device.kind == "cuda")
    variables = {
        mark: value,
        "CUDA_VISIBLE_DEVICES": gpus,
        "OMP_NUM_THREADS": str(config.threads),
        "PYTHONUNBUFFERED": "1",
    }
    if isinstance(config.spec.program, ScriptProgram):
        variables["SHARDYARD_WEIGHTS"] = ",".join(map(str, config.spec.weights or (1.0,) * config.spec.all_devices))
    if config.traceparent:
        variables["TRACEPARENT"] = config.traceparent
    if config.network == "none":  # by name: the host's name may lead to an interface that is not there
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    if not config.is_distributed:
        return variables
    if not config.is_gang:
        assert port is not None
        variables |= rendezvous_variables(config.address, port)
        if config.boxed and config.network == "host":
            variables[STORE_VARIABLE] = PRIVATE_STORE
    world = str(config.world_size)
    return variables | {
        "WORLD_SIZE": world,
        "RANK": str(number),
        "LOCAL_RANK": str(number - config.ranks.start),
        "LOCAL_WORLD_SIZE": str(len(config.ranks)),
        "GROUP_RANK": str(config.part),
        "GROUP_WORLD_SIZE": str(max(1, len(config.parts))),
        "NODE_RANK": str(config.part),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(number),
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RESTART_COUNT": str(config.attempt.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": config.attempt.job,
        # The supervisor serves the store; without this rank 0 would try to bind its port and fail.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def rendezvous_variables(address: str, port: int, interface: str = "") -> dict[str, str]:
    """Where the ranks of an attempt meet: the supervisor of part 0 serves the store there. `interface` is the one with
    this node's address, where there are several nodes: by themselves gloo and NCCL may choose another."""
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return found | {name: interface for name in INTERFACE_VARIABLES if interface}
