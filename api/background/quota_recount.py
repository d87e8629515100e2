"""Recounts what tenants and tokens with quotas use, after an API has started."""

from jobs.store.accounts.quotas import recount_quotas
from jobs.store.client import RedisStore


class QuotaRecount:
    """APIs and workers of an earlier version, which know no quotas, may go on beside this process for a quarter of an
    hour: so it counts when it starts, and for some time after."""

    def __init__(self, control: RedisStore) -> None:
        self._control = control
        self._rounds = 3

    def recount(self) -> None:
        """Raises Unavailable: the control Redis does not answer."""
        if self._rounds:
            self._control.run(recount_quotas())
            self._rounds -= 1
