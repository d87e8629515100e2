"""What a machine that joins receives: where the service is, and the credentials to connect to it.

`shardyard up --listen` writes it into a file that the API reads (SHARDYARD_JOIN_FILE), and the API hands it to whoever
has a token to join with. It holds passwords: the file is for its owner alone.
"""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

#: Far more than it takes.
MAX_FILE_BYTES: Final = 64 * 1024
_REDIS: Final = ("redis_url", "telemetry_url", "supervisor_redis_url", "supervisor_telemetry_url")


class JoinOffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`url` is that of the API; the others are of both Redis servers, with the users of workers and of supervisors.
    `authority` is the PEM text of what signs their certificates."""

    url: str
    redis_url: str
    telemetry_url: str
    supervisor_redis_url: str
    supervisor_telemetry_url: str
    authority: str

    def __repr__(self) -> str:
        return f"JoinOffer(url={self.url!r})"


class OfferUnusable(Exception):
    """There is no offer, or it would have others come in unprotected."""


def read_offer(file: Path) -> JoinOffer:
    """Raises OfferUnusable."""
    try:
        if file.stat().st_mode & 0o077:
            raise OfferUnusable(f"{file} can be read by others; run `chmod 600 {file}`")
        with file.open("rb") as reader:
            offer = msgspec.json.decode(reader.read(MAX_FILE_BYTES), type=JoinOffer)
    except (OSError, ValueError) as error:
        raise OfferUnusable(f"the file for machines that join, {file}, cannot be used: {error}") from error
    require_protected(offer)
    return offer


def require_protected(offer: JoinOffer) -> None:
    """Refuse what others on the network could read, or use without a password.

    Raises:
        OfferUnusable: an address has no TLS, or a Redis no password.
    """
    if urlsplit(offer.url).scheme != "https":
        raise OfferUnusable(
            f"{offer.url} is not an https:// URL: whoever is on the network could read the node's token"
        )
    for name in _REDIS:
        parts = urlsplit(getattr(offer, name))
        if parts.scheme != "rediss" or not parts.hostname:
            raise OfferUnusable(f"{name} is not a rediss:// URL: whoever is on the network could read what goes there")
        if not parts.password:
            raise OfferUnusable(f"{name} has no password: whoever is on the network could use that Redis")
