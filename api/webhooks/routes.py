"""Routes of webhooks, and of their deliveries."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.http import responses
from api.http.deps import Body, Caller, IfMatchHeader, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from api.webhooks.service import WebhookService
from jobs.store.accounts.webhooks import MAX_LISTED
from shardyard.contract.webhooks import DeliveryList, NewWebhook, PostedDelivery, WebhookList, WebhookView

ServiceDep = Annotated[WebhookService, Depends(service_of(WebhookService))]
WebhookId = Annotated[str, Path(description="id of a webhook")]
DeliveryId = Annotated[str, Path(description="id of a delivery")]
State = Annotated[Literal["all", "delivered", "dead"], Query(description="dead: those that were given up")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED)]
router = APIRouter(tags=["webhooks"])


@router.get("/v1/webhooks", **describe("List webhooks", WebhookList))
async def list_webhooks(who: Caller, webhooks: ServiceDep) -> Response:
    """Without their secrets, and without what is secret of their addresses."""
    return responses.json_response(await webhooks.list_webhooks(who))


@router.post(
    "/v1/webhooks",
    status_code=201,
    **describe(
        "Create a webhook",
        NewWebhook,
        statuses=(201,),
        refuses=("webhook_quota", "secret_key_unusable"),
        body=json_body("NewWebhookRequest", examples.WEBHOOKS),
    ),
)
async def create(who: Caller, webhooks: ServiceDep, body: Body) -> Response:
    """The answer has the secret that deliveries are signed with. It is not shown again."""
    return responses.json_response(await webhooks.create_webhook(who, body), 201, {"Cache-Control": "no-store"})


@router.get("/v1/webhooks/{webhook}", **describe("Get a webhook", WebhookView))
async def show(who: Caller, webhooks: ServiceDep, webhook: WebhookId) -> Response:
    return responses.json_response(await webhooks.show_webhook(who, webhook))


@router.patch(
    "/v1/webhooks/{webhook}",
    **describe(
        "Change a webhook",
        WebhookView,
        refuses=("conflict", "secret_key_unusable", "precondition_failed"),
        body=json_body("WebhookChange", examples.WEBHOOK_CHANGES),
    ),
)
async def change(
    who: Caller, webhooks: ServiceDep, webhook: WebhookId, body: Body, tags: IfMatchHeader = None
) -> Response:
    """Its address, name and events, or whether it is active. What waits for it is sent to the new address."""
    if tags is not None:
        responses.require_match(tags, await webhooks.show_webhook(who, webhook))
    return responses.json_response(await webhooks.change_webhook(who, webhook, body))


@router.post(
    "/v1/webhooks/{webhook}/rotate",
    **describe(
        "Replace the secret of a webhook",
        NewWebhook,
        refuses=("conflict", "secret_key_unusable", "precondition_failed"),
        body=json_body("WebhookRotation", examples.WEBHOOK_ROTATIONS, required=False),
    ),
)
async def rotate(
    who: Caller, webhooks: ServiceDep, webhook: WebhookId, body: Body, tags: IfMatchHeader = None
) -> Response:
    """The answer has the new secret. Meanwhile deliveries have two signatures, with either secret."""
    if tags is not None:
        responses.require_match(tags, await webhooks.show_webhook(who, webhook))
    return responses.json_response(await webhooks.rotate_secret(who, webhook, body), 200, {"Cache-Control": "no-store"})


@router.delete(
    "/v1/webhooks/{webhook}", status_code=204, **describe("Delete a webhook", refuses=("precondition_failed",))
)
async def delete(who: Caller, webhooks: ServiceDep, webhook: WebhookId, tags: IfMatchHeader = None) -> Response:
    """What waits for it is not sent any more."""
    if tags is not None:
        responses.require_match(tags, await webhooks.show_webhook(who, webhook))
    await webhooks.delete_webhook(who, webhook)
    return Response(status_code=204)


@router.post(
    "/v1/webhooks/{webhook}/test",
    status_code=202,
    **describe("Test a webhook", PostedDelivery, statuses=(202,), refuses=("conflict", "webhook_quota")),
)
async def test(who: Caller, webhooks: ServiceDep, webhook: WebhookId) -> Response:
    """Sends an event of the kind `webhook.test`; what became of it is in the list of deliveries."""
    return responses.json_response(await webhooks.post_test(who, webhook), 202)


@router.get(
    "/v1/webhooks/{webhook}/deliveries",
    **describe("List deliveries of a webhook", DeliveryList, refuses=("malformed_cursor",)),
)
async def list_deliveries(
    request: Request,
    who: Caller,
    webhooks: ServiceDep,
    webhook: WebhookId,
    state: State = "all",
    cursor: str = "",
    limit: Limit = 50,
) -> Response:
    """Those that wait, the last that have arrived, and dead letters; the newest first."""
    page = await webhooks.list_deliveries(who, webhook, state, cursor, limit)
    return responses.page_response(request, page, page.next_cursor)


@router.post(
    "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver",
    status_code=202,
    **describe("Send a delivery again", PostedDelivery, statuses=(202,)),
)
async def redeliver(who: Caller, webhooks: ServiceDep, webhook: WebhookId, delivery: DeliveryId) -> Response:
    """With its id, after it has arrived or was given up; one that waits is left as it is."""
    return responses.json_response(await webhooks.redeliver(who, webhook, delivery), 202)
