"""Routes to sign in to the dashboard and out of it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.accounts import sessions_service as service
from api.accounts.session_cookie import set_session_cookie
from api.accounts.sessions_service import SessionService
from api.http import responses
from api.http.deps import SESSION_COOKIE, Body, Caller, check_origin, service_of
from api.http.operation_docs import describe, json_body
from api.schemas import examples
from jobs.store.accounts.sessions import SESSION_SECONDS
from shardyard.contract import responses as answers

ServiceDep = Annotated[SessionService, Depends(service_of(SessionService))]
router = APIRouter(tags=["sessions"])


@router.post(
    "/v1/sign-in",
    status_code=204,
    **describe(
        "Begin a browser's session",
        refuses=("unauthenticated", "forbidden", "unavailable"),
        body=json_body("SignInRequest", examples.SIGN_INS),
    ),
)
async def sign_in(request: Request, sessions: ServiceDep, body: Body) -> Response:
    """Sets a cookie that replaces the token in the body, `{"token": "..."}`, for twelve hours. It is for browsers;
    programs send the token itself. In place of the token a browser may have the code of a sign-in link."""
    if "origin" in request.headers:
        check_origin(request)
    answer = Response(status_code=204, headers={"Cache-Control": "no-store"})
    # TLS may end at a proxy, whose word is not taken; the browser knows how it came here.
    secure = "https" in (request.url.scheme, request.headers.get("origin", "").partition("://")[0])
    set_session_cookie(
        answer,
        await sessions.begin_session(body, request.headers.get("origin", "")),
        seconds=SESSION_SECONDS,
        secure=secure,
    )
    return answer


@router.post(
    "/v1/sign-in/code",
    status_code=201,
    **describe(
        "Make a sign-in link",
        answers.SignInCode,
        statuses=(201,),
        refuses=("forbidden",),
    ),
)
async def issue_code(request: Request, who: Caller, sessions: ServiceDep) -> Response:
    """A code with which a browser signs in once, within a quarter of an hour, for the owner of the token of this
    request: open `/sign-in#code=<code>`. Browsers take it on the service's own machine, and over HTTPS."""
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    code = await sessions.issue_code(who, request.headers.get("authorization", ""), origin)
    return responses.json_response(code, 201, {"Cache-Control": "no-store"})


@router.post(
    "/v1/sign-out", status_code=204, **describe("End a session or a login", refuses=("forbidden", "unavailable"))
)
async def sign_out(request: Request, sessions: ServiceDep) -> Response:
    """Ends the session of the cookie, if there is one. Without a cookie, the token of the request is revoked, if a
    sign-in of a command line made it."""
    session, header = request.cookies.get(SESSION_COOKIE, ""), request.headers.get("authorization")
    if header is not None and not session:
        await sessions.end_login(header)
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    if "origin" in request.headers:
        check_origin(request)
    await sessions.end_session(session)
    answer = Response(status_code=204, headers={"Cache-Control": "no-store"})
    answer.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.get("/v1/me", **describe("Show the owner of the token", answers.Caller))
async def me(who: Caller) -> Response:
    """The owner of the token or session, and its scopes."""
    return responses.json_response(service.describe_caller(who))
