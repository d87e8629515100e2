"""Finds the service for the command line and the client: by arguments, else by variables, else on this machine.
A token that `shardyard login` has stored for its address is used where none is given.

A running `shardyard up` keeps `service.json` in its data directory: its URL, the file of its admin
token, its pid and, where it serves HTTPS, the file of its certificate, which is the only one that is
accepted there, whatever its name. That token is only ever sent to that URL.
"""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from shardyard.client.logins import read_login
from shardyard.contract.errors import Unauthenticated, Unavailable

SERVICE_FILE = "service.json"


@dataclass(frozen=True, slots=True)
class LocalService:
    """The contents of `service.json`."""

    url: str
    token_file: Path
    pid: int
    certificate: Path | None = None


def default_data_dir() -> Path:
    """SHARDYARD_DATA_DIR, else `shardyard` in the XDG data directory."""
    chosen = os.environ.get("SHARDYARD_DATA_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "shardyard"


def local_service(data_dir: Path) -> LocalService | None:
    """The service that runs on `data_dir`, or None."""
    try:
        found = json.loads((data_dir / SERVICE_FILE).read_text())
        service = LocalService(found["url"], Path(found["token_file"]), found["pid"])
        return replace(service, certificate=Path(found["certificate"])) if "certificate" in found else service
    except (OSError, ValueError, KeyError, TypeError):
        return None


#: Settings that name files and directories of a service on this machine.
PRIVATE_SETTINGS = ("DATA_DIR", "STORAGE", "STATE_DIR", "ADMIN_TOKEN_FILE", "SECRET_KEY_FILE", "TLS_KEY")


def private_paths() -> list[Path]:
    """Where services of this machine keep their data and credentials, as far as it can be known; nothing of it may be
    packed with a user's code."""
    named = [Path(os.environ[f"SHARDYARD_{name}"]) for name in PRIVATE_SETTINGS if os.environ.get(f"SHARDYARD_{name}")]
    local = local_service(default_data_dir())
    return [Path("~/.local/share/shardyard").expanduser(), default_data_dir(), *named] + (
        [] if local is None else [local.token_file]
    )


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of a service, and the token. An empty token means none. `certificate`: the file of the only one that
    is accepted; None: those that the system trusts."""

    url: str
    token: str = field(repr=False)
    certificate: Path | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def find_service(url: str | None = None, token: str | None = None) -> ServiceAddress:
    """The service to use. With an empty `token`, requests have none.

    Raises:
        Unavailable: no URL is given, and none runs here.
        Unauthenticated: no token is given, none is stored for this URL, and the local one is not for it.
    """
    url = (url or os.environ.get("SHARDYARD_URL") or "").rstrip("/") or None
    if token is None:
        token = os.environ.get("SHARDYARD_TOKEN") or None
    data_dir = default_data_dir()
    local = local_service(data_dir)
    if url is None and local is None:
        raise Unavailable(
            "no service is running on this machine; start one with `shardyard up`, "
            "or name one with --url or SHARDYARD_URL"
        )
    certificate = None
    if local is not None and url in (None, local.url):
        url, certificate = local.url, local.certificate
    assert url is not None
    if token is None and (login := read_login(data_dir, url)) is not None:
        token = login.token
    if token is None and local is not None and url == local.url:
        token = _read_text(local.token_file)
    if token is None:
        raise Unauthenticated(
            f"no token for {url}; give one with --token or SHARDYARD_TOKEN, or sign in with `shardyard login`"
        )
    return ServiceAddress(url, token, certificate)


def url_host(host: str) -> str:
    """The host part of a URL under which a server that listens on `host` is reached from this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104  # compared only
    return f"[{reachable}]" if ":" in reachable else reachable


def _read_text(token_file: Path) -> str | None:
    try:
        return token_file.read_text().strip() or None
    except OSError:
        return None
