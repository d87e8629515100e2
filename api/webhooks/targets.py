"""Where webhooks go, by their formats: which fields a format has, and what they must be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from api.webhooks.addresses import AddressRules
from api.webhooks.mails import MailTransport
from jobs.store.accounts.webhooks import WebhookTarget
from shardyard.contract.errors import FieldError, InvalidRequest

GITHUB_URL: Final = "https://api.github.com"


@dataclass(frozen=True, slots=True)
class FormatRules:
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()
    default_url: str = ""
    #: What its events must be about; '' for anything.
    group: str = ""


FORMATS: Final[Mapping[str, FormatRules]] = {
    "json": FormatRules(("url",)),
    "slack": FormatRules(("url",)),
    "github": FormatRules(("repo", "token_secret"), ("url",), GITHUB_URL, "job."),
    "email": FormatRules(("to",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTarget:
    """Where a webhook is to go, as far as a request says it."""

    url: str | None = None
    repo: str | None = None
    token_secret: str | None = None
    to: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class CheckedTarget:
    """The whole address, which is secret; what is shown of it; and what the format needs beside."""

    url: str
    shown: str
    target: WebhookTarget


def check_target(
    form: str, wanted: WantedTarget, events: Sequence[str], rules: AddressRules, mail: MailTransport
) -> CheckedTarget:
    """Raises InvalidRequest."""
    check_events(form, events)
    _check_fields(form, wanted)
    if form == "email":
        to = tuple(dict.fromkeys(wanted.to or ()))
        mail.check_recipients(to)
        return CheckedTarget(f"mailto:{','.join(to)}", f"mailto:{','.join(to)}", WebhookTarget(to=to))
    url = wanted.url or FORMATS[form].default_url
    shown = shown_url(rules.check_url(url), form)
    if form == "github" and httpx.URL(url).query:
        raise _refuse("url", "the API of GitHub has no part after ?")
    return CheckedTarget(url, shown, WebhookTarget(repo=wanted.repo or "", token_secret=wanted.token_secret or ""))


def check_events(form: str, events: Sequence[str]) -> None:
    """Raises InvalidRequest where a format has no message of such events."""
    for place, kind in enumerate(events):
        if not kind.startswith(FORMATS[form].group):
            raise _refuse(f"events.{place}", f"a webhook of the format {form} has events of jobs only: job.*")


def _check_fields(form: str, wanted: WantedTarget) -> None:
    rules = FORMATS[form]
    for name in ("url", "repo", "token_secret", "to"):
        is_given = getattr(wanted, name) is not None
        if name in rules.needs and not is_given:
            raise _refuse(name, f"a webhook of the format {form} needs it")
        if is_given and name not in (*rules.needs, *rules.may_have):
            raise _refuse(name, f"a webhook of the format {form} has none")


def _refuse(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest("the webhook is not valid", fields=(FieldError(name, problem),))


def shown_url(url: httpx.URL, form: str) -> str:
    """An address as far as it is no secret: the path of a webhook of Slack is one, and a query often has one."""
    if form == "slack":
        return f"{url.copy_with(raw_path=b'/')}..."
    return str(url.copy_with(query=None)) + ("?..." if url.query else "")
