"""Routes of secrets: values that jobs name, and that only their ranks get."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.accounts.secrets_service import SecretService
from api.http import responses
from api.http.deps import Body, Caller, IfMatchHeader, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from shardyard.contract.responses import SecretList, SecretView

ServiceDep = Annotated[SecretService, Depends(service_of(SecretService))]
SecretName = Annotated[str, Path(description="name of a secret")]
router = APIRouter(tags=["secrets"])


@router.get("/v1/secrets", **describe("List secrets", SecretList))
async def list_secrets(who: Caller, secrets: ServiceDep) -> Response:
    """Names and times. A value is never shown."""
    return responses.json_response(await secrets.list_secrets(who))


@router.get("/v1/secrets/{secret}", **describe("Show a secret", SecretView))
async def show(who: Caller, secrets: ServiceDep, secret: SecretName) -> Response:
    """Its times. A value is never shown."""
    return responses.json_response(await secrets.read_secret(who, secret))


@router.put(
    "/v1/secrets/{secret}",
    status_code=201,
    **describe(
        "Store a secret",
        SecretView,
        statuses=(201, 200),
        refuses=("secret_quota", "secret_key_unusable", "precondition_failed"),
        body=json_body("SecretRequest", examples.SECRETS),
    ),
)
async def put(who: Caller, secrets: ServiceDep, secret: SecretName, body: Body, tags: IfMatchHeader = None) -> Response:
    """Stores a value, encrypted, in place of an older one of that name. Attempts that start from now on get it."""
    if tags is not None:
        await responses.require_match_of(tags, secrets.read_secret(who, secret))
    stored, is_new = await secrets.put_secret(who, secret, body)
    return responses.json_response(stored, 201 if is_new else 200)


@router.delete("/v1/secrets/{secret}", status_code=204, **describe("Delete a secret", refuses=("precondition_failed",)))
async def delete(who: Caller, secrets: ServiceDep, secret: SecretName, tags: IfMatchHeader = None) -> Response:
    """Attempts that run keep its value; jobs that name it can no longer start."""
    if tags is not None:
        responses.require_match(tags, await secrets.read_secret(who, secret))
    await secrets.delete_secret(who, secret)
    return Response(status_code=204)
