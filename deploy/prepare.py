"""Make the secrets of a composed service, each in the volume of those who may know it. Runs before every start.

    control/, telemetry/   password of that Redis server, and its users; lies beside the server's data
    settings/              the URLs with those passwords, for the API and the workers
    admin/                 the admin token, for the API alone
    keys/                  the key that encrypts users' secrets, for the API and the workers
    storage/               files of jobs, for the API and the workers

What exists is kept: a service that is started again knows the passwords and the token it had. Everything belongs to one
account: of the servers, and of the API. Workers are root, pass over modes, and see the storage as their own
(`own_storage.py`). In volumes of earlier versions the API's was root's.
"""

import base64
import json
import os
import secrets
import subprocess
from pathlib import Path

ROOT = Path("/prepare")
#: Everything but what administers a server; INFO is among that, and the API asks it what kind of server this is.
RIGHTS = "~* &* +@all -@admin -@dangerous +info"
#: Nobody can log in as `default`, but Redis 7.0 replays its append-only file as that user: without these rights it
#: skips every transaction in there, and starts empty.
DEFAULT_USER = "user default off ~* &* +@all"
SERVER_ACCOUNT = 10_001
SERVERS = {"control": "SHARDYARD_REDIS_URL", "telemetry": "SHARDYARD_TELEMETRY_URL"}
SERVICE_URL = "http://127.0.0.1:8000"
ADMIN_DIR = "/run/shardyard/admin"  # as the API sees it


def main(api: int = SERVER_ACCOUNT) -> None:
    """`api` is the API's account."""
    os.umask(0o077)
    for server, variable in SERVERS.items():
        password = kept(ROOT / server / "password", secrets.token_hex(32), SERVER_ACCOUNT)
        users = f"{DEFAULT_USER}\nuser shardyard on >{password} {RIGHTS}\n"
        write(ROOT / server / "users.acl", users, SERVER_ACCOUNT)
        write(ROOT / "settings" / variable, f"redis://shardyard:{password}@{server}:6379/0\n", api)
    kept(ROOT / "admin" / "token", f"sy_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}", api)
    kept(ROOT / "keys" / "secret-key", base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(), api)
    # Where the command line looks for its service, so that it finds it when it is run in the API's container.
    service = {"url": SERVICE_URL, "token_file": f"{ADMIN_DIR}/token", "pid": 1}
    write(ROOT / "admin" / "service.json", json.dumps(service) + "\n", api)
    for volume in ("settings", "admin", "keys"):
        os.chown(ROOT / volume, api, api)
    take_storage(ROOT / "storage", api)


def take_storage(storage: Path, api: int) -> None:
    """Give the API's account the files of an earlier version. Links are not followed, and the directory itself comes
    last: it tells that the rest is done. Nobody writes there meanwhile: compose has stopped what it will start anew."""
    if storage.stat().st_uid != api:
        subprocess.run(["chown", "-hR", f"{api}:{api}", storage], check=True)


def kept(path: Path, proposed: str, account: int) -> str:
    """The secret in `path`, which is made with the proposed one when there is none, and belongs to `account`."""
    if not path.exists():
        write(path, proposed + "\n", account)
    os.chown(path, account, account)
    return path.read_text().strip()


def write(path: Path, text: str, account: int) -> None:
    """Replace `path` in one step, for `account`: nobody ever reads half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.chown(part, account, account)
    part.replace(path)


if __name__ == "__main__":
    main(int(os.environ.get("SHARDYARD_API_USER") or SERVER_ACCOUNT))
