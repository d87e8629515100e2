"""A sign-in that a browser has begun: what its cookie holds until the identity provider sends it back.

All that binds the answer to this browser is derived from one random secret, which nobody but the browser has: `state`,
which the provider returns with the browser; `nonce`, which it puts into the ID token; and `verifier` (PKCE), which
only the API shows it, with the code. The cookie is not signed: whoever forges one forges a sign-in of their own.
"""

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from shardyard.contract.errors import FieldError, InvalidRequest

#: How long somebody may take at the identity provider.
PENDING_SECONDS: Final = 600
MAX_NEXT_LENGTH: Final = 1024
_COOKIE: Final = re.compile(r"([A-Za-z0-9_-]{43})\.(\d{1,12})\.([A-Za-z0-9_=-]{4,2048})")
#: A path of this service: no host before it ("//", which "/\" is to a browser as well), and nothing unprintable.
_PATH: Final = re.compile(r"/(?![/\\])[!-\[\]-~]*")


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """`next_path` is where the browser goes afterwards; `begun` is in seconds since the epoch."""

    secret: str
    begun: int
    next_path: str

    @property
    def state(self) -> str:
        return self._derive("state")

    @property
    def nonce(self) -> str:
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        return self._derive("verifier")

    def is_expired(self, now: float) -> bool:
        return not -PENDING_SECONDS < now - self.begun < PENDING_SECONDS

    def to_cookie(self) -> str:
        return f"{self.secret}.{self.begun}.{base64.urlsafe_b64encode(self.next_path.encode()).decode()}"

    def _derive(self, purpose: str) -> str:
        digest = hmac.digest(self.secret.encode(), purpose.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def begin_pending(next_path: str, now: float) -> PendingSignIn:
    """Raises InvalidRequest: `next_path` is not one of this service."""
    return PendingSignIn(secrets.token_urlsafe(32), int(now), check_next(next_path))


def parse_cookie(text: str) -> PendingSignIn | None:
    """None for what `to_cookie` has not made."""
    found = _COOKIE.fullmatch(text)
    if found is None:
        return None
    try:
        next_path = check_next(base64.urlsafe_b64decode(found[3]).decode("ascii"))
    except (ValueError, InvalidRequest):
        return None
    return PendingSignIn(found[1], int(found[2]), next_path)


def check_next(path: str) -> str:
    """Raises InvalidRequest: it leads elsewhere than to a page of this service."""
    if len(path) > MAX_NEXT_LENGTH or _PATH.fullmatch(path) is None:
        message = f"send a path of this service that begins with one /, at most {MAX_NEXT_LENGTH} characters of ASCII"
        raise InvalidRequest("the sign-in cannot end there", fields=(FieldError("next", message),))
    return path
