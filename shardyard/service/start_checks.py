"""What `shardyard up` checks before it starts anything, to say what is wrong in a sentence."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from jobs.model.settings import Settings
from shardyard.service.processes import ServiceError
from workers.node.devices import discover_devices

REDIS_SCHEMES = ("redis", "rediss", "unix")
#: In place of a regular expression.
PATTERNS = {"pool": "use lower-case letters and digits, with '.', '_' or '-' between them"}


def read_settings(**chosen: Any) -> Settings:
    """The settings of the environment, with those that the command line says.

    Raises:
        ServiceError: one of them is not usable.
    """
    try:
        return Settings(**chosen)
    except ValidationError as error:
        wrong = "; ".join(_describe(found, chosen) for found in error.errors())
        raise ServiceError(f"cannot start: {wrong}") from error


def _describe(found: Any, chosen: dict[str, Any]) -> str:
    name = ".".join(map(str, found["loc"]))
    message = str(found["msg"]).removeprefix("Value error, ")
    if found["type"] == "string_pattern_mismatch":
        message = f"{PATTERNS.get(name, 'is not in the right format, see docs/settings.md')}"
    option = f"--{name.replace('_', '-')} (SHARDYARD_{name.upper()})" if name in chosen else f"SHARDYARD_{name.upper()}"
    given = "" if found["type"] == "missing" or not name else f" {found['input']!r}"
    return f"{option}{given}: {message}" if name else message


def check_devices(devices: str) -> None:
    """Raises ServiceError if this machine does not have them."""
    try:
        discover_devices(devices)
    except ValueError as error:
        raise ServiceError(f"--devices: {error}") from error


def check_redis_url(option: str, url: str | None) -> None:
    """Raises ServiceError if it is not the URL of a Redis."""
    if url is not None and (scheme := urlsplit(url).scheme) not in REDIS_SCHEMES:
        given = f"{scheme}:// is not a Redis URL" if scheme else "no URL"
        raise ServiceError(f"{option}: {given}; use redis://, rediss:// or unix://")


def make_data_directory(directory: Path) -> None:
    """Raises ServiceError if it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServiceError(
            f"cannot make the data directory {directory}: {error.strerror}. Give another --data-dir."
        ) from error
