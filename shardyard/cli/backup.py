"""The commands `backup` and `restore`."""

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
        help="URL of the control Redis of a service with its own Redis server; without it, the one of --data-dir.",
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


def backup_command(
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="An empty directory, or a new one.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
) -> None:
    """Back up the service of this machine, running or stopped, or one with its own Redis server."""
    require_server("backup")
    from shardyard.service import backup as backups

    directory = _data_directory(data_dir)
    if redis_url is None:
        with backups.embedded_service(directory, _warn_user) as service:
            made = backups.make_backup(service, destination)
    else:
        with backups.connect_control(redis_url) as control:
            made = backups.make_backup(
                backups.BackupSource(control, storage or directory / "storage", None), destination
            )
    print(f"{destination}: {backups.describe_backup(made)}")


def restore_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A back-up that `shardyard backup` made.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
) -> None:
    """Make an empty data directory, or an empty Redis and storage directory, what they were when SRC was made.

    Jobs that ran then are queued, and run again.
    """
    require_server("restore")
    from shardyard.service import backup as backups

    directory = _data_directory(data_dir)
    if redis_url is None:
        made = backups.restore_data_dir(source, directory, _warn_user)
        print(
            f"{directory}: {backups.describe_backup(made)}\n`shardyard up --data-dir {directory}` continues from there"
        )
    else:
        with backups.connect_control(redis_url) as control:
            made = backups.restore_outside(source, control, storage or directory / "storage")
        print(f"{storage or directory / 'storage'}: {backups.describe_backup(made)}")


def _data_directory(data_dir: Path | None) -> Path:
    from shardyard.client.connection import default_data_dir

    return (data_dir or default_data_dir()).expanduser().absolute()


def _warn_user(text: str) -> None:
    print(f"! {text}", file=sys.stderr)


COMMANDS: Commands = {"backup": backup_command, "restore": restore_command}
