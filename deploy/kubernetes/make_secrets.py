"""Write what the pods of deploy/kubernetes keep secret, each in its file below `base/secrets`, once.

    python deploy/kubernetes/make_secrets.py

It needs the package with its extra `server`. What exists is kept, so that a service keeps its passwords and its token.
Keep the folder out of version control, or encrypt it there.
"""

import base64
import os
import secrets
import sys
from pathlib import Path

from jobs.store.acl import RedisRole, RedisServerKind, user_name
from shardyard.service.redis_users import make_passwords, user_lines

FOLDER = Path(__file__).parent / "base" / "secrets"
#: Nobody can log in as `default`, but Redis 7.0 replays its append-only file as that user.
DEFAULT_USER = "user default off ~* &* +@all"


def main(folder: Path = FOLDER) -> None:
    os.umask(0o077)
    if folder.exists():
        print(f"{folder} is there already, and stays as it is")
        return
    part = folder.with_name(f".{folder.name}.part")
    for name in ("api", "worker"):
        (part / name).mkdir(parents=True, exist_ok=True)
    variables = {RedisServerKind.CONTROL: "REDIS_URL", RedisServerKind.TELEMETRY: "TELEMETRY_URL"}
    for kind, variable in variables.items():
        passwords = make_passwords()
        users = [DEFAULT_USER, *user_lines(passwords, [kind])]
        (part / f"{kind}.acl").write_text("\n".join(users) + "\n")
        urls = {role: f"redis://{user_name(role)}:{passwords[role]}@{kind}:6379/0\n" for role in RedisRole}
        (part / "api" / f"SHARDYARD_{variable}").write_text(urls[RedisRole.API])
        (part / "worker" / f"SHARDYARD_{variable}").write_text(urls[RedisRole.WORKER])
        (part / "worker" / f"SHARDYARD_SUPERVISOR_{variable}").write_text(urls[RedisRole.SUPERVISOR])
    (part / "admin-token").write_text(f"sy_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}\n")
    (part / "secret-key").write_text(base64.urlsafe_b64encode(secrets.token_bytes(32)).decode() + "\n")
    part.rename(folder)
    print(f"written to {folder}; the admin token is in {folder / 'admin-token'}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
