"""The cookie of a browser's session."""

from fastapi import Response

from api.http.deps import SESSION_COOKIE


def set_session_cookie(answer: Response, session: str, *, seconds: int, secure: bool) -> None:
    """Have the browser send the session's id to this service alone, and only from its own pages."""
    answer.set_cookie(
        SESSION_COOKIE, session, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )
