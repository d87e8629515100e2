"""The commands `backup` and `restore`."""

import contextlib
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shardyard.cli.common import Commands, parse_seconds
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
        help="With --redis-url: the storage directory; `storage` in the data directory otherwise. Or, of any service, "
        "its bucket: s3://bucket/prefix.",
        show_default=False,
    ),
]


def backup_command(
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="An empty directory, or a new one.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
    deadline: Annotated[
        str,
        typer.Option(help="Leave out files of jobs that are not copied within this time: seconds, or 10m, 2h, 1d."),
    ] = "1d",
) -> None:
    """Back up the service of this machine, running or stopped, or one with its own Redis server.

    What cannot be backed up (links, sockets, files that cannot be read) is left out, shown here and named in the
    back-up's manifest. So is the key of users' secrets.
    """
    require_server("backup")
    from shardyard.service.backup import source
    from shardyard.service.backup.bucket_mirror import find_bucket, removed_afterwards
    from shardyard.service.backup.creation import make_backup
    from shardyard.service.backup.left_out import describe_left_out
    from shardyard.service.backup.manifest import describe_backup
    from shardyard.service.backup.refusals import refuse_unless_empty
    from shardyard.service.backup.secret_notice import describe_secrets
    from shardyard.service.secret_key_file import find_key_file

    directory, seconds = _data_directory(data_dir), parse_seconds(deadline, "--deadline")
    bucket = find_bucket(storage)
    with contextlib.ExitStack() as stack:
        if redis_url is None:
            service = stack.enter_context(source.embedded_service(directory, _warn_user))
        else:
            control = stack.enter_context(source.connect_control(redis_url))
            service = source.BackupSource(control, storage or directory / "storage", None, find_key_file(None))
        if bucket is not None:
            refuse_unless_empty(destination, "the back-up needs a directory of its own")
            beside = destination.absolute().with_name(f".{destination.name}.bucket")
            mirror = stack.enter_context(removed_afterwards(beside))
            service = dataclasses.replace(service, storage=mirror, fetch=bucket.fetch_all)
        made = make_backup(service, destination, seconds)
    for left_out in made.left_out:
        _warn_user(describe_left_out(left_out))
    print(f"{destination}: {describe_backup(made)}")
    if made.secrets is not None:
        print(describe_secrets(made.secrets))


def restore_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A back-up that `shardyard backup` made.")],
    data_dir: DataDir = None,
    redis_url: RedisUrl = None,
    storage: Storage = None,
) -> None:
    """Restore a back-up into an empty data directory, or into an empty Redis and storage directory.

    Jobs that ran then are queued, and run again. The file with the key of users' secrets is not in a back-up: put it
    in place first.
    """
    require_server("restore")
    from shardyard.service.backup.bucket_mirror import find_bucket
    from shardyard.service.backup.manifest import describe_backup
    from shardyard.service.backup.restore import restore_data_dir, restore_outside
    from shardyard.service.backup.secret_notice import find_unreadable_secrets
    from shardyard.service.backup.source import connect_control
    from shardyard.service.secret_key_file import find_key_file

    directory, bucket = _data_directory(data_dir), find_bucket(storage)
    if redis_url is None:
        made = restore_data_dir(source, directory, _warn_user, bucket)
        print(f"{directory}: {describe_backup(made)}\n`shardyard up --data-dir {directory}` continues from there")
    else:
        with connect_control(redis_url) as control:
            place = storage or directory / "storage"
            with contextlib.ExitStack() as stack:
                if bucket is not None:
                    temporary = tempfile.TemporaryDirectory(prefix="shardyard-restore-")
                    place = Path(stack.enter_context(temporary))
                made = restore_outside(source, control, place, bucket)
            unreadable = find_unreadable_secrets(control, find_key_file(None), made)
        if unreadable is not None:
            _warn_user(unreadable)
        print(f"{storage or directory / 'storage'}: {describe_backup(made)}")


def _data_directory(data_dir: Path | None) -> Path:
    from shardyard.client.connection import default_data_dir

    return (data_dir or default_data_dir()).expanduser().absolute()


def _warn_user(text: str) -> None:
    print(f"! {text}", file=sys.stderr)


COMMANDS: Commands = {"backup": backup_command, "restore": restore_command}
