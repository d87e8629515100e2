"""Commands that keep a service: backup, restore."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shardyard.cli.common import Commands
from shardyard.cli.server_extra import require_server
from shardyard.cli.service import DataDir

RedisUrl = Annotated[
    str | None,
    typer.Option(
        envvar="SHARDYARD_REDIS_URL",
        help="The control Redis of a service with one of its own; that of --data-dir otherwise.",
        show_default=False,
    ),
]
Storage = Annotated[
    Path | None,
    typer.Option(
        envvar="SHARDYARD_STORAGE",
        help="With --redis-url: the storage directory; `storage` in the data directory otherwise.",
        show_default=False,
    ),
]


def backup(
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="A directory that is empty, or not there yet.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
) -> None:
    """Back up the service of this machine, running or stopped, or one with a Redis of its own."""
    require_server("backup")
    from shardyard.service import backup as backups

    directory = _directory(data_dir)
    if redis_url is None:
        with backups.embedded_service(directory, _say) as service:
            made = backups.make(service, destination)
    else:
        with backups.connected(redis_url) as control:
            made = backups.make(backups.Service(control, storage or directory / "storage", None), destination)
    print(f"{destination}: {backups.described(made)}")


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="What `shardyard backup` made.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
) -> None:
    """Make an empty data directory, or an empty Redis and storage directory, what they were when SRC was made.

    Jobs that ran then are queued, and run again.
    """
    require_server("restore")
    from shardyard.service import backup as backups

    directory = _directory(data_dir)
    if redis_url is None:
        made = backups.restore(source, directory, _say)
        print(f"{directory}: {backups.described(made)}\n`shardyard up --data-dir {directory}` goes on from there")
    else:
        with backups.connected(redis_url) as control:
            made = backups.restore_outside(source, control, storage or directory / "storage")
        print(f"{storage or directory / 'storage'}: {backups.described(made)}")


def _directory(data_dir: Path | None) -> Path:
    from shardyard.client.connection import default_data_dir

    return (data_dir or default_data_dir()).expanduser().absolute()


def _say(text: str) -> None:
    print(f"! {text}", file=sys.stderr)


COMMANDS: Commands = {"backup": backup, "restore": restore}
