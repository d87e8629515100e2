"""Commands about webhooks: webhook add, list, show, change, rotate, remove, test, deliveries, redeliver."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Token, Url, connect_client, make_console, make_table, print_answer, print_json
from shardyard.cli.framework.commands import make_app
from shardyard.contract.errors import Unavailable

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.webhooks import DeliveryList, DeliveryView, NewWebhook, WebhookList, WebhookView

app = make_app(help="Messages to your services when jobs change.", no_args_is_help=True)

#: How long a test is waited for, and between two looks at it.
TEST_SECONDS, POLL_SECONDS = 15.0, 0.25

WebhookId = Annotated[
    str, typer.Argument(metavar="WEBHOOK", help="Its id from `shardyard webhook list`.", show_default=False)
]
Events = Annotated[
    list[str] | None,
    typer.Option("--event", help="A kind of event, such as job.failed or node.*; may be repeated.", show_default=False),
]

Repo = Annotated[str | None, typer.Option(metavar="OWNER/NAME", help="For github: the repository.", show_default=False)]
TokenSecret = Annotated[
    str | None,
    typer.Option(
        metavar="SECRET",
        help="For github: the secret (`shardyard secret put`) with a token that may write commit statuses.",
        show_default=False,
    ),
]
Recipients = Annotated[
    list[str] | None,
    typer.Option(metavar="MAIL", help="For email: a recipient; may be repeated.", show_default=False),
]

ADD_EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard webhook add https://ci.example.com/hooks/shardyard --event job.failed --event job.succeeded",
        "shardyard webhook add https://hooks.slack.com/services/... --format slack",
        "shardyard webhook add https://pager.example.com/x --event 'node.*' --event 'device.*'",
        "shardyard webhook add --to ml-team@example.com --event job.failed     a mail",
        "shardyard webhook add --repo acme/vision --token-secret github-token  statuses on the commits that jobs name",
    )
)
DELIVERIES_EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard webhook deliveries WEBHOOK              those that wait, have arrived or were given up",
        "shardyard webhook deliveries WEBHOOK --state dead",
        "shardyard webhook redeliver WEBHOOK DELIVERY      send one of them again",
        "shardyard webhook redeliver WEBHOOK --dead        send all dead letters again, the oldest first",
    )
)


@app.command("add", epilog=ADD_EXAMPLES)
def add_command(
    address: Annotated[
        str | None, typer.Argument(metavar="[ADDRESS]", help="Where to send, https://...", show_default=False)
    ] = None,
    event: Events = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="json (signed), slack, github or email; by default it follows from the other options.",
            show_default=False,
        ),
    ] = None,
    repo: Repo = None,
    token_secret: TokenSecret = None,
    to: Recipients = None,
    name: Annotated[str, typer.Option(help="What it is for, so that you recognise it later.")] = "",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a webhook. The secret that its deliveries are signed with is shown only this once."""
    from shardyard.client import endpoints

    if address is None and not (to or repo):
        raise typer.BadParameter("say where to send: ADDRESS, --to MAIL, or --repo OWNER/NAME with --token-secret")
    form = form or ("email" if to else "github" if repo else "json")
    call = endpoints.create_webhook(
        address, events=event or ["job.*"], form=form, name=name, repo=repo, token_secret=token_secret, to=to
    )
    print_answer(call, _print_new, url, token, as_json)


def _print_new(made: "NewWebhook") -> None:
    print(f"{made.id} sends {', '.join(made.events)} to {made.url}")
    if made.format == "json":
        print(f"secret: {made.secret}")
    print(f"try it with `shardyard webhook test {made.id}`")


@app.command("list")
def list_command(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List webhooks, and how their deliveries went."""
    from shardyard.client import endpoints

    print_answer(endpoints.list_webhooks(), _print_webhooks, url, token, as_json)


def _print_webhooks(found: "WebhookList") -> None:
    listing = make_table("WEBHOOK", "NAME", "EVENTS", "ADDRESS", "STATE", "#WAITING", "#DEAD")
    for each in found.webhooks:
        counts = (str(each.waiting), str(each.dead))
        listing.add_row(each.id, each.name, ", ".join(each.events), each.url, _standing(each), *counts)
    make_console().print(listing)


def _standing(webhook: "WebhookView") -> str:
    if not webhook.active:
        return "not active"
    return "fails" if webhook.failing_since is not None else "ok"


@app.command("show")
def show_command(webhook: WebhookId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Show a webhook, without its secret."""
    from shardyard.client import endpoints

    print_answer(endpoints.show_webhook(webhook), _print_webhook, url, token, as_json)


def _print_webhook(found: "WebhookView") -> None:
    rows = {
        "webhook": found.id,
        "name": found.name,
        "address": found.url,
        "format": found.format,
        "repository": found.repo,
        "token": found.token_secret and f"secret {found.token_secret}",
        "events": ", ".join(found.events),
        "state": _standing(found),
        "problem": found.problem,
        "older secret": f"used until {formatting.local_time(found.former_until)}" if found.former_until else "",
        "created": formatting.local_time(found.created_at),
        "last delivery": formatting.local_time(found.delivered_at),
        "failing since": formatting.local_time(found.failing_since),
        "waiting": str(found.waiting),
        "dead": str(found.dead),
        "missed": str(found.missed) if found.missed else "",
    }
    listing = make_table("", "")
    listing.show_header = False
    for field, value in rows.items():
        if value:
            listing.add_row(field, value)
    make_console().print(listing)


@app.command("change")
def change_command(
    webhook: WebhookId,
    address: Annotated[str | None, typer.Option(help="Another address.", show_default=False)] = None,
    event: Events = None,
    repo: Repo = None,
    token_secret: TokenSecret = None,
    to: Recipients = None,
    name: Annotated[str | None, typer.Option(help="Another name.", show_default=False)] = None,
    active: Annotated[
        bool | None,
        typer.Option(
            "--on/--off", help="Whether it gets events; deliveries that wait for it are kept.", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Change a webhook: where it goes, its name and events, or whether it gets any."""
    from shardyard.client import endpoints

    target = {"url": address, "repo": repo, "token_secret": token_secret, "to": to}
    call = endpoints.change_webhook(webhook, events=event, name=name, active=active, **target)
    print_answer(call, _print_webhook, url, token, as_json)


@app.command("rotate")
def rotate_command(
    webhook: WebhookId,
    overlap: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long deliveries are also signed with the old secret; a day by default. 0: not at all, if "
            "others may know it.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Replace the secret that deliveries are signed with. The new one is shown only this once."""
    from shardyard.client import endpoints

    print_answer(endpoints.rotate_webhook(webhook, overlap_seconds=overlap), _print_rotated, url, token, as_json)


def _print_rotated(found: "NewWebhook") -> None:
    print(f"secret: {found.secret}")
    print(f"deliveries are also signed with the old one until {formatting.local_time(found.former_until)}")


@app.command("remove")
def remove_command(webhook: WebhookId, url: Url = None, token: Token = None) -> None:
    """Delete a webhook, and the deliveries that wait for it."""
    with connect_client(url, token) as client:
        client.delete_webhook(webhook)
    print(f"{webhook} is deleted")


@app.command("test")
def try_command(webhook: WebhookId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Send an event of the kind webhook.test, and wait for the outcome."""
    with connect_client(url, token) as client:
        found = _await_delivery(client, webhook, client.test_webhook(webhook))
        if as_json:
            from shardyard.client import endpoints

            listed = client.json(endpoints.list_deliveries(webhook, state="all", cursor="", limit=50))
            return print_json(next(row for row in listed["deliveries"] if row["id"] == found.id))
    if found.state == "delivered":
        print(
            f"it has arrived: the receiver answered {found.status}" + (f" ({found.problem})" if found.problem else "")
        )
        return None
    problem = found.problem or "it is on its way"
    where = f"`shardyard webhook deliveries {webhook}`"
    raise Unavailable(f"the test has not arrived: {problem}; it will be tried again ({where} shows it)")


def _await_delivery(client: "Client", webhook: str, delivery: str) -> "DeliveryView":
    """The delivery, when it has arrived or failed once, or the time is over."""
    end = time.monotonic() + TEST_SECONDS
    while True:
        listed = client.list_deliveries(webhook).deliveries
        found = next((row for row in listed if row.id == delivery), None)
        if found is None:
            raise Unavailable("the test is not among the last deliveries any more: many others came after it")
        if found.state != "waiting" or found.problem or time.monotonic() > end:
            return found
        time.sleep(POLL_SECONDS)


@app.command("deliveries", epilog=DELIVERIES_EXAMPLES)
def deliveries_command(
    webhook: WebhookId,
    state: Annotated[str, typer.Option(help="all, delivered, or dead (given up).")] = "all",
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many, the newest first.")] = 50,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List deliveries of a webhook, and what was wrong with those that have not arrived."""
    from shardyard.client import endpoints

    call = endpoints.list_deliveries(webhook, state=state, cursor="", limit=limit)
    print_answer(call, _print_deliveries, url, token, as_json)


def _print_deliveries(found: "DeliveryList") -> None:
    listing = make_table("DELIVERY", "EVENT", "ABOUT", "STATE", "#TRIES", "CREATED", "PROBLEM")
    for each in found.deliveries:
        about = str(each.data.get("id") or each.data.get("node") or "")
        created = formatting.local_time(each.created_at)
        listing.add_row(each.id, each.kind, about, each.state, str(each.tries), created, each.problem)
    make_console().print(listing)


@app.command("redeliver")
def redeliver_command(
    webhook: WebhookId,
    delivery: Annotated[
        str | None, typer.Argument(metavar="DELIVERY", help="Its id from `webhook deliveries`.", show_default=False)
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All dead letters, the oldest first.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Send a delivery again, or all that were given up. Receivers recognise them by their ids."""
    if (delivery is None) is not dead:
        raise typer.BadParameter("give either the id of a delivery, or --dead")
    with connect_client(url, token) as client:
        wanted = [delivery] if delivery is not None else _list_dead(client, webhook)
        for each in wanted:
            client.redeliver(webhook, each)
    print("sent again: " + (", ".join(wanted) or "nothing, there are no dead letters"))


def _list_dead(client: "Client", webhook: str) -> list[str]:
    """Ids of the dead letters, the oldest first."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = client.list_deliveries(webhook, state="dead", cursor=cursor, limit=100)
        found += [row.id for row in page.deliveries]
        cursor = page.next_cursor
    return found[::-1]
