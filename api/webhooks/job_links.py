"""Links to jobs in messages, if the operator has set the dashboard's public address."""

from dataclasses import dataclass
from urllib.parse import quote

from jobs.store.accounts.webhooks import StoredEvent

#: Kinds of events, before their first dot, that are about one job.
_OF_JOBS = frozenset({"job", "finding"})


@dataclass(frozen=True, slots=True)
class JobLinks:
    """`public_url` is the address of the service in people's browsers; "": it is not known, and there are no links."""

    public_url: str = ""

    def link_of(self, event: StoredEvent) -> str:
        """The page of the job that an event is about; "" where there is none."""
        job = str(event.data.get("id") or "")
        if not (self.public_url and job and event.kind.partition(".")[0] in _OF_JOBS):
            return ""
        return f"{self.public_url.rstrip('/')}/jobs/{quote(job, safe='')}"
