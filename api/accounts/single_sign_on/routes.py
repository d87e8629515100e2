"""Routes of single sign-on: two that a browser passes through, two for command lines, and one that lists them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from api.accounts.session_cookie import set_session_cookie
from api.accounts.single_sign_on.config import CALLBACK_PATH, SingleSignOnConfig
from api.accounts.single_sign_on.pages import HEADERS, PageRoute
from api.accounts.single_sign_on.pending import PENDING_SECONDS
from api.accounts.single_sign_on.service import SingleSignOnService
from api.http import responses
from api.http.deps import Body, PeerAddress, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from shardyard.contract.responses import DeviceSignIn, DeviceSignInState, SignInWays

ServiceDep = Annotated[SingleSignOnService, Depends(service_of(SingleSignOnService))]
router = APIRouter(tags=["sessions"])
pages = APIRouter(tags=["sessions"], route_class=PageRoute)

_REFUSES = ("unauthenticated", "forbidden", "not_found", "unboxed_nodes", "unavailable")


@router.get("/v1/sign-in", **describe("Show the ways to sign in", SignInWays))
async def show_ways(sign_on: ServiceDep) -> Response:
    return responses.json_response(sign_on.describe_ways())


@pages.get(
    "/v1/sign-in/oidc",
    status_code=303,
    **describe("Begin a single sign-on", without_body=(303,), refuses=("not_found", "rate_limited", "unavailable")),
)
async def begin(
    sign_on: ServiceDep,
    address: PeerAddress,
    next_path: Annotated[str, Query(alias="next", description="page of this service to come back to")] = "/",
) -> Response:
    """Sends a browser to the identity provider, with a cookie against which its return is checked."""
    pending, url = await sign_on.begin_sign_in(next_path, address)
    config = sign_on.require_config()
    answer = Response(status_code=303, headers=HEADERS | {"Location": url})
    answer.set_cookie(
        pending_cookie(config),
        pending.to_cookie(),
        max_age=PENDING_SECONDS,
        path="/",
        secure=config.is_secure,
        httponly=True,
        samesite="lax",  # the way back begins at another site
    )
    return answer


@pages.get(
    CALLBACK_PATH,
    status_code=303,
    **describe("Finish a single sign-on", without_body=(303,), refuses=_REFUSES),
)
async def finish(request: Request, sign_on: ServiceDep) -> Response:
    """The identity provider sends a browser here. It gets a session's cookie, and goes on to the page it wanted."""
    config = sign_on.require_config()
    name = pending_cookie(config)
    session, next_path = await sign_on.finish_sign_in(dict(request.query_params), request.cookies.get(name, ""))
    answer = Response(status_code=303, headers=HEADERS | {"Location": next_path})
    answer.delete_cookie(name, path="/", secure=config.is_secure, httponly=True, samesite="lax")
    set_session_cookie(answer, session, seconds=config.session_seconds, secure=config.is_secure)
    return answer


@router.post(
    "/v1/sign-in/device",
    **describe("Begin a sign-in of a command line", DeviceSignIn, refuses=("not_found", "rate_limited", "unavailable")),
)
async def begin_device(sign_on: ServiceDep, address: PeerAddress) -> Response:
    """The code that the user enters at the identity provider, and where."""
    begun = await sign_on.begin_device_sign_in(address)
    return responses.json_response(begun, 200, {"Cache-Control": "no-store"})


@router.post(
    "/v1/sign-in/device/token",
    **describe(
        "Finish a sign-in of a command line",
        DeviceSignInState,
        refuses=_REFUSES,
        body=json_body("DeviceSignInRequest", examples.DEVICE_SIGN_INS),
    ),
)
async def finish_device(sign_on: ServiceDep, body: Body) -> Response:
    """Ask again every `interval` seconds until `state` is signed_in; the answer has the token then, this once."""
    return responses.json_response(await sign_on.finish_device_sign_in(body), 200, {"Cache-Control": "no-store"})


def pending_cookie(config: SingleSignOnConfig) -> str:
    """Name of the cookie of a sign-in that has begun; over TLS no other host of the domain can set it."""
    return "__Host-shardyard_sign_in" if config.is_secure else "shardyard_sign_in"
