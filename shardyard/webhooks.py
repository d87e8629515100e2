"""For receivers of webhooks: checks that a delivery comes from your service, and reads it.

    event = shardyard.webhooks.verify(secret, request.headers["Shardyard-Signature"], request.body)

A delivery may arrive twice: keep the ids of the last ones (`event.id`), and drop what you have seen.
"""

import hashlib
import hmac
import re
import time

import msgspec

from shardyard.contract.webhooks import WebhookEvent

__all__ = ["TOLERANCE_SECONDS", "InvalidSignature", "WebhookEvent", "sign", "verify"]

#: How old a delivery may be. A retry is signed anew, so this covers clocks that differ and networks that are slow.
TOLERANCE_SECONDS = 300
_FIELD = re.compile(r"\s*(t|v1)=([0-9a-f]{1,64})\s*", re.ASCII)
MAX_HEADER_LENGTH = 1024


class InvalidSignature(ValueError):
    """What was received is not a delivery of your service, or an old one."""


def verify(
    secret: str,
    signature: str,
    body: bytes,
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> WebhookEvent:
    """The event of a delivery. `signature` is the header `Shardyard-Signature`; `body` are the bytes as they came.

    Raises:
        InvalidSignature: the signature is missing or wrong, or it is older than `tolerance` seconds.
    """
    fields = [_FIELD.fullmatch(part) for part in signature[:MAX_HEADER_LENGTH].split(",")]
    times = [found[2] for found in fields if found is not None and found[1] == "t"]
    given = [found[2] for found in fields if found is not None and found[1] == "v1"]
    if len(times) != 1 or not times[0].isdigit() or not given:
        raise InvalidSignature("the header Shardyard-Signature is missing, or not of the form t=...,v1=...")
    expected = _digest(secret, times[0], body)
    if not any(hmac.compare_digest(expected, found) for found in given):
        raise InvalidSignature("the signature does not match the body; is it the secret of this webhook?")
    if abs((time.time() if now is None else now) - int(times[0])) > tolerance:
        raise InvalidSignature(f"the delivery was signed more than {tolerance:g} s ago, or the clocks differ by that")
    try:
        return msgspec.json.decode(body, type=WebhookEvent)
    except msgspec.MsgspecError as error:
        raise InvalidSignature(f"the body is not an event: {error}") from error


def sign(secret: str, body: bytes, *, former: str = "", now: float | None = None) -> str:
    """The header `Shardyard-Signature` of a body, as the service makes it; for tests of receivers. While a secret is
    replaced, the one before it (`former`) signs as well."""
    at = str(int(time.time() if now is None else now))
    return ",".join((f"t={at}", *(f"v1={_digest(each, at, body)}" for each in (secret, former) if each)))


def _digest(secret: str, at: str, body: bytes) -> str:
    return hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
