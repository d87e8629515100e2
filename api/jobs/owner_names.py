"""The display names of job owners: the names of the tokens that have submitted them."""

import asyncio
import time
from collections.abc import Collection

from api.http.auth import Authenticator

#: A name is asked for again after so long.
KEPT_SECONDS = 60.0
MAX_KEPT = 4096


class OwnerNames:
    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._known: dict[str, tuple[str, float]] = {}

    async def read_name(self, token: str) -> str | None:
        """The name of a token, or its id where it has none or is gone; None for a job without one."""
        if not token:
            return None
        name, until = self._known.get(token, ("", 0.0))
        return name if until >= time.monotonic() else (await self.read_names({token}))[token]

    async def read_names(self, tokens: Collection[str]) -> dict[str, str]:
        """The names by the ids of the tokens."""
        now = time.monotonic()
        if len(self._known) > MAX_KEPT:
            self._known.clear()
        unknown = [token for token in tokens if self._known.get(token, ("", 0.0))[1] < now]
        if unknown:
            names = await asyncio.gather(*(self._authenticator.name_token(token) for token in unknown))
            self._known |= {token: (name, now + KEPT_SECONDS) for token, name in zip(unknown, names, strict=True)}
        return {token: self._known[token][0] for token in tokens}
