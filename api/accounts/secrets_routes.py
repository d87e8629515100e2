"""Routes of secrets: values that jobs name, and that only their ranks get."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from api.accounts.secrets_service import SecretService
from api.http import responses
from api.http.deps import Body, Caller, service_of
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


@router.put(
    "/v1/secrets/{secret}",
    status_code=201,
    **describe(
        "Store a secret",
        SecretView,
        statuses=(201, 200),
        refuses=("secret_quota", "secret_key_unusable"),
        body=json_body("SecretRequest", examples.SECRETS),
    ),
)
async def put(who: Caller, secrets: ServiceDep, secret: SecretName, body: Body) -> Response:
    """Stores a value, encrypted, in place of an older one of that name. Attempts that start from now on get it."""
    stored, is_new = await secrets.put_secret(who, secret, body)
    return responses.json_response(stored, 201 if is_new else 200)


@router.delete("/v1/secrets/{secret}", status_code=204, **describe("Delete a secret"))
async def delete(who: Caller, secrets: ServiceDep, secret: SecretName) -> Response:
    """Attempts that run keep its value; jobs that name it cannot start any more."""
    await secrets.delete_secret(who, secret)
    return Response(status_code=204)
