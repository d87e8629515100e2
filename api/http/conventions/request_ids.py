"""The id of a request: in its answer, its problem, the audit, and every line that is logged while it is served."""

import random
import re
from collections.abc import Iterable

HEADER = b"x-request-id"
#: Of an id that is taken over.
MAX_LENGTH = 128
_TAKEN_OVER = re.compile(rb"[A-Za-z0-9._:+/=@~-]{1,128}")


def choose_request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What the client or a proxy calls the request, where that is an id; else a new one."""
    given = [value for name, value in headers if name == HEADER]
    if len(given) == 1 and _TAKEN_OVER.fullmatch(given[0]) is not None:
        return given[0].decode("ascii")
    return f"{random.getrandbits(64):016x}"  # no secret: without a system call
