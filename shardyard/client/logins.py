"""Tokens that `shardyard login` got, each for one service, in a file that only its owner can read."""

import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

LOGINS_FILE = "logins.json"


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """`expires_at` is in the form of ISO 8601; None: never."""

    token: str = field(repr=False)
    expires_at: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def read_login(data_dir: Path, url: str) -> StoredLogin | None:
    """That of the service at this address. One that has expired is as good as none."""
    found = _read_logins(data_dir).get(url.rstrip("/"))
    return None if found is None or found.is_expired(datetime.now(UTC)) else found


def store_login(data_dir: Path, url: str, login: StoredLogin) -> Path:
    """Keep it, in place of an earlier one; the file. Raises OSError."""
    return _write_logins(data_dir, _read_logins(data_dir) | {url.rstrip("/"): login})


def remove_login(data_dir: Path, url: str) -> bool:
    """Whether there was one. Raises OSError."""
    logins = _read_logins(data_dir)
    if logins.pop(url.rstrip("/"), None) is None:
        return False
    _write_logins(data_dir, logins)
    return True


def _read_logins(data_dir: Path) -> dict[str, StoredLogin]:
    try:
        return msgspec.json.decode((data_dir / LOGINS_FILE).read_bytes(), type=dict[str, StoredLogin])
    except (OSError, msgspec.DecodeError):
        return {}


def _write_logins(data_dir: Path, logins: dict[str, StoredLogin]) -> Path:
    """Under another name first: no reader sees half a file, and it is closed to others from its first byte on."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data_dir / LOGINS_FILE
    part = path.with_name(f".{LOGINS_FILE}.{secrets.token_hex(4)}")
    now = datetime.now(UTC)
    kept = {url: asdict(login) for url, login in logins.items() if not login.is_expired(now)}
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        part.rename(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return path
