"""Make the secrets of a composed service, each in the volume of those who may know it. Runs before every start.

    control/, telemetry/   password of that Redis server, and its users; lies beside the server's data
    settings/              the URLs with those passwords, for the API and the workers
    admin/                 the admin token, for the API alone

What exists is kept: a service that is started again knows the passwords and the token it had.
"""

import json
import os
import secrets
from pathlib import Path

ROOT = Path("/prepare")
#: Everything but what administers a server; INFO is among that, and the API asks it what kind of server this is.
RIGHTS = "~* &* +@all -@admin -@dangerous +info"
#: Nobody can log in as `default`, but Redis 7.0 replays its append-only file as that user: without these rights it
#: skips every transaction in there, and starts empty.
DEFAULT_USER = "user default off ~* &* +@all"
SERVERS = {"control": "SHARDYARD_REDIS_URL", "telemetry": "SHARDYARD_TELEMETRY_URL"}
SERVICE_URL = "http://127.0.0.1:8000"
ADMIN_DIR = "/run/shardyard/admin"  # as the API sees it


def main() -> None:
    os.umask(0o077)
    for server, variable in SERVERS.items():
        password = kept(ROOT / server / "password", secrets.token_hex(32))
        write(ROOT / server / "users.acl", f"{DEFAULT_USER}\nuser shardyard on >{password} {RIGHTS}\n")
        write(ROOT / "settings" / variable, f"redis://shardyard:{password}@{server}:6379/0\n")
    kept(ROOT / "admin" / "token", f"sy_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}")
    # Where the command line looks for its service, so that it finds it when it is run in the API's container.
    service = {"url": SERVICE_URL, "token_file": f"{ADMIN_DIR}/token", "pid": 1}
    write(ROOT / "admin" / "service.json", json.dumps(service) + "\n")


def kept(path: Path, proposed: str) -> str:
    """The secret in `path`, which is made with the proposed one when there is none."""
    if not path.exists():
        write(path, proposed + "\n")
    return path.read_text().strip()


def write(path: Path, text: str) -> None:
    """Replace `path` in one step: nobody ever reads half of it."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


if __name__ == "__main__":
    main()
