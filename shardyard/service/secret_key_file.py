"""The file with the keys that encrypt secrets: where a service has it, and how it gets a new one."""

import os
from pathlib import Path

from jobs.model.settings import Settings
from jobs.support import secret_keys

#: In the data directory of `shardyard up`, unless SHARDYARD_SECRET_KEY_FILE names another.
SECRET_KEY_FILE = "secret.key"  # noqa: S105
FIRST = "{} has a key now. Copy it to the API and to all workers, and name it in SHARDYARD_SECRET_KEY_FILE there."
NEXT = (
    "{} has a new key before the {}. Copy it to all workers, then to the API, which encrypts all secrets with the new "
    "key within ten minutes and logs secrets_reencrypted. Then remove the lines below the first one everywhere."
)


def find_key_file(data_dir: Path | None) -> Path:
    """The file of `shardyard up` on a data directory, or, without one, of the service that the settings describe. It
    need not be there."""
    if data_dir is None:
        return Settings().secret_keys()
    return Path(os.environ.get("SHARDYARD_SECRET_KEY_FILE") or data_dir / SECRET_KEY_FILE).expanduser()


def add_new_key(file: Path) -> str:
    """Add a key to a file, or make the file. Returns what to do next.

    Raises:
        SecretKeyUnusable: the file cannot be used.
    """
    file = file.expanduser()
    known = len(secret_keys.read_keys(file).by_head) if file.exists() else 0
    secret_keys.add_key(file)
    return FIRST.format(file) if not known else NEXT.format(file, "older one" if known == 1 else f"{known} older ones")
