"""Commands that run the service: up, api, worker, demo, config."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from shardyard.cli.common import AsJson, Commands, make_console, make_table, parse_seconds, print_json
from shardyard.cli.framework.commands import PlainCommand
from shardyard.cli.server_extra import require_server
from shardyard.contract.errors import InvalidRequest

Devices = Annotated[
    str,
    typer.Option(
        envvar="SHARDYARD_DEVICES",
        help="auto (all GPUs; without one, virtual devices), cuda:0-3, cuda:0,2, or cpu:8 for eight virtual devices.",
    ),
]
Pool = Annotated[str, typer.Option(envvar="SHARDYARD_POOL", help="Pool that the devices belong to.")]
Nodes = Annotated[
    int,
    typer.Option(
        "--nodes",
        envvar="SHARDYARD_NODES",
        min=1,
        max=16,
        help="Divide this machine into this many virtual nodes, each with --devices, to try splits over several hosts; "
        "for virtual devices only.",
    ),
]
Topology = Annotated[
    str,
    typer.Option(
        envvar="SHARDYARD_TOPOLOGY",
        metavar="LABEL",
        help="Where this host is, for example its rack or switch: a job on several nodes gets those of one label "
        "first.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option(envvar="SHARDYARD_HOST", help="Address that the API listens on.")]
Port = Annotated[int, typer.Option(envvar="SHARDYARD_PORT", min=0, max=65535, help="0 selects a free one.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        envvar="SHARDYARD_DATA_DIR",
        help="Directory for all data of the service.",
        show_default="~/.local/share/shardyard",
    ),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        envvar="SHARDYARD_REDIS_URL",
        help="URL of your own control Redis, instead of the built-in one.",
        show_default=False,
    ),
]
TelemetryUrl = Annotated[
    str | None,
    typer.Option(envvar="SHARDYARD_TELEMETRY_URL", help="The same for the telemetry Redis.", show_default=False),
]

JobsUnboxed = Annotated[
    bool,
    typer.Option(
        "--jobs-unboxed",
        envvar="SHARDYARD_JOBS_UNBOXED",
        help="Accept several tenants, and a --host that others can reach, although jobs get no box here.",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="SHARDYARD_TLS_CERT",
        metavar="FILE",
        help="Serve HTTPS with this certificate (PEM); needs --tls-key.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(envvar="SHARDYARD_TLS_KEY", metavar="FILE", help="The certificate's private key.", show_default=False),
]
InsecureHttp = Annotated[
    bool,
    typer.Option(
        "--insecure-http",
        envvar="SHARDYARD_INSECURE_HTTP",
        help="Accept a --host that others can reach without TLS, for example where a proxy ends it.",
    ),
]

Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Serve other machines, which join with `shardyard join`, at this address of this machine: makes "
        "certificates, and gives Redis TLS and passwords.",
        show_default=False,
    ),
]
RedisPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65534,
        help="With --listen: port of the control Redis; the telemetry Redis has the next one. 0: free ones.",
    ),
]

#: A month.
MAX_DRAIN_SECONDS = 30 * 86_400
NO_DEADLINE = "no deadline"


class WorkerCommand(PlainCommand):
    """Lets `--drain` stand without its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        bare = (
            word == "--drain" and (place + 1 == len(args) or args[place + 1].startswith("-"))
            for place, word in enumerate(args)
        )
        return super().parse_args(
            ctx, [f"--drain={NO_DEADLINE}" if is_bare else word for word, is_bare in zip(args, bare, strict=True)]
        )


def up_command(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    data_dir: DataDir = None,
    devices: Devices = "auto",
    nodes: Nodes = 1,
    pool: Pool = "default",
    redis_url: RedisUrl = None,
    telemetry_url: TelemetryUrl = None,
    jobs_unboxed: JobsUnboxed = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure_http: InsecureHttp = False,
    listen: Listen = None,
    redis_port: RedisPort = 6380,
) -> None:
    """Start the whole service on this machine and keep it running: Redis, API and one worker, or one for each of
    --nodes.

    Ctrl-C stops it in order; running jobs go back to the queue and start again with the next `up`.
    """
    require_server("up")
    from shardyard.client.connection import default_data_dir
    from shardyard.service.up import UpOptions
    from shardyard.service.up import run_service as run

    options = UpOptions(
        host,
        port,
        data_dir or default_data_dir(),
        devices,
        pool,
        redis_url,
        telemetry_url,
        jobs_unboxed,
        tls_cert=tls_cert,
        tls_key=tls_key,
        insecure_http=insecure_http,
        nodes=nodes,
        listen=listen,
        redis_port=redis_port,
    )
    run(options, make_console(markup=True))


def demo_command(devices: Devices = "auto") -> None:
    """Start a separate service, train on handwritten digits under dp and ddp, show what each device got, and stop
    it."""
    require_server("demo")
    from shardyard.cli.demo import run_demo

    raise typer.Exit(run_demo(devices, make_console(markup=True)))


def api_command() -> None:
    """Run the API alone, with the settings of `shardyard config`."""
    require_server("api")
    _exec_module("api")


def worker_command(
    pool: Pool = "default",
    devices: Devices = "auto",
    topology: Topology = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PYTHON",
            help="A Python environment with torch that scripts may name, by the path of its Python; may be repeated.",
        ),
    ] = None,
    stop_attempts_on_exit: Annotated[
        bool, typer.Option(help="End running attempts when the worker ends; they go back to the queue.")
    ] = False,
    drain: Annotated[
        str | None,
        typer.Option(
            metavar="[SECONDS]",
            help="SIGTERM means: no new work, and wait for running attempts. Those that still run after SECONDS save a "
            "checkpoint and move to other nodes.",
            show_default=False,
        ),
    ] = None,
    block: Annotated[
        str,
        typer.Option(
            envvar="SHARDYARD_BLOCK",
            metavar="ID",
            help="This host is temporary: it is part of a block of an engine, for example a Slurm job.",
            show_default=False,
        ),
    ] = "",
    idle_exit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="For a block: leave after this long without a job: seconds, or 90s, 10m, 2h.",
            show_default=False,
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="For a block: drain after this long, before the engine ends it: seconds, or 55m, 8h.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Join this host's devices to a service with an external Redis (SHARDYARD_REDIS_URL) and shared storage.

    SIGTERM ends the worker; running attempts continue, and the next worker of this node adopts them. With --drain the
    worker waits first, and a second SIGTERM ends it at once.

    With --block, SIGTERM and SIGUSR2 mean that the host is about to be taken away: attempts save a checkpoint and move
    to other nodes, at once or after --drain SECONDS, and the node is forgotten.

    shardyard worker --pool a100 --devices cuda:0-7 --drain 600

    shardyard worker --pool slurm --block $SLURM_JOB_ID --idle-exit 600 --lifetime 55m
    """
    require_server("worker")
    _refuse_embedded(os.environ.get("SHARDYARD_REDIS_URL", ""))
    os.environ["SHARDYARD_POOL"] = pool
    os.environ["SHARDYARD_DEVICES"] = devices
    os.environ["SHARDYARD_TOPOLOGY"] = topology
    if env:
        os.environ["SHARDYARD_ENVIRONMENTS"] = ",".join(env)
    if block:
        os.environ["SHARDYARD_BLOCK"] = block
    options = _block_options(block, idle_exit, lifetime, stop_attempts_on_exit)
    _exec_module("workers.node.worker_monitor", *_sigterm_options(stop_attempts_on_exit, drain), *options)


def _block_options(block: str, idle_exit: str | None, lifetime: str | None, stop_attempts: bool) -> list[str]:
    """The worker's arguments for a node of a block.

    Raises:
        InvalidRequest: they are no times, or make no sense together.
    """
    if not block:
        if idle_exit is not None or lifetime is not None:
            raise InvalidRequest("--idle-exit and --lifetime are for temporary nodes; add --block ID")
        return []
    if stop_attempts:
        raise InvalidRequest("a node of a block moves its attempts anyway; leave out --stop-attempts-on-exit")
    found = ["--in-block"]
    for option, given in (("--idle-exit", idle_exit), ("--lifetime", lifetime)):
        if given is not None:
            found += [option, f"{parse_seconds(given, option):g}"]
    return found


def _sigterm_options(stop_attempts: bool, drain: str | None) -> list[str]:
    """The worker's arguments for the options about SIGTERM.

    Raises:
        InvalidRequest: they contradict each other, or name no time.
    """
    if drain is None:
        return ["--stop-attempts-on-exit"] if stop_attempts else []
    if stop_attempts:
        raise InvalidRequest(
            "give either --stop-attempts-on-exit or --drain: one ends attempts, the other waits for them"
        )
    if drain == NO_DEADLINE:
        return ["--drain"]
    if not drain.isdecimal() or int(drain) > MAX_DRAIN_SECONDS:
        raise InvalidRequest(f"--drain {drain!r}: give 0 to {MAX_DRAIN_SECONDS} seconds, or nothing")
    return ["--drain", drain]


def _refuse_embedded(url: str) -> None:
    """Refuse the Redis of `up`: it listens on a local socket, and `up` runs a worker there already."""
    if url and not url.startswith("unix:"):
        return
    found = "is the built-in Redis of `shardyard up`, which no other host can reach" if url else "is not set"
    raise InvalidRequest(
        f"SHARDYARD_REDIS_URL {found}; to have several workers, run a Redis of your own, start the service with "
        "`shardyard up --redis-url redis://... --telemetry-url redis://...`, and set the same two URLs and "
        "SHARDYARD_STORAGE here"
    )


def provider_command(
    pools: Annotated[
        Path, typer.Option(envvar="SHARDYARD_POOLS", metavar="FILE", help="TOML file of the pools to keep.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, and print the script that sbatch would get for each pool.")
    ] = False,
) -> None:
    """Keep the nodes of pools that Slurm supplies: ask it for blocks when jobs wait, and release them.

    Run it where sbatch is, with the service's settings in the environment as for a worker.

    shardyard provider --pools pools.toml --check
    """
    require_server("provider")
    if not check:
        _refuse_embedded(os.environ.get("SHARDYARD_REDIS_URL", ""))
    _exec_module("workers.provider.main", "--pools", str(pools), *(["--check"] if check else []))


def config_command(as_json: AsJson = False) -> None:
    """List every setting: its variable, its value here, and what it does. Secrets are not shown."""
    require_server("config")
    from shardyard.service.settings_listing import list_settings

    rows = list_settings()
    if as_json:
        return print_json(rows)
    listing = make_table("VARIABLE", "VALUE", "")
    listing.columns[2].no_wrap = False
    for row in rows:
        value = "-" if row["value"] is None or row["value"] == "" else str(row["value"])
        listing.add_row(row["variable"], value + (" (set)" if row["set"] else ""), row["description"])
    return make_console().print(listing)


def _exec_module(*module: str) -> NoReturn:
    """Replace this process with one of the service's programs, which then gets its signals and gives its exit code."""
    # -P: a directory called `jobs` or `api` in the working directory must not shadow ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", *module])  # noqa: S606


COMMANDS: Commands = {
    "up": up_command,
    "demo": demo_command,
    "api": api_command,
    "worker": worker_command,
    "provider": provider_command,
    "config": config_command,
}
