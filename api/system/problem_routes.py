"""A page for each kind of problem, at the address in the problem's `type`: what it means, and what to do."""

import html
import re
from typing import Final

from fastapi import APIRouter, Response

from api.http.problems import PAGES, PROBLEMS
from shardyard.contract.errors import NotFound

router = APIRouter(include_in_schema=False)

#: When a request is answered with a problem, and what helps; docs/api.md has the same, with links.
EXPLANATIONS: Final = {
    "bad_request": "the request is not valid HTTP",
    "bad_host": "the Host header has a name that this service does not answer to; see `SHARDYARD_ALLOWED_HOSTS`",
    "malformed_json": "the body is not JSON, although it says so",
    "malformed_cursor": "a cursor that this service did not issue",
    "unauthenticated": "no token, or one that is unknown, revoked or expired",
    "sign_in_failed": (
        "a single sign-on that was denied, took too long, did not begin in this browser, or cannot be proven"
    ),
    "forbidden": "the token lacks the scope, or it is a node's and the file belongs to no attempt of that node",
    "files_in_bucket": (
        "a node tried to upload its files to the API, but the service keeps them in a bucket: name that in the node's "
        "`SHARDYARD_STORAGE`"
    ),
    "no_access": "the identity provider knows this person, but no access rule applies to them",
    "over_quota": "the job needs more than the quota of the tenant or the token will ever allow",
    "not_found": "no such thing, or it is another tenant's",
    "method_not_allowed": "the path exists, but not for this method",
    "not_acceptable": "the Accept header allows none of the available media types; `detail` names them",
    "body_timeout": "the body did not arrive in time",
    "ambiguous_reference": "several jobs match a `ref`; `candidates` has them, at most ten",
    "precondition_failed": "somebody else has changed what `If-Match` names; read it again",
    "conflict": "the request contradicts the current state",
    "idempotency_conflict": "this Idempotency-Key was used with another body",
    "job_finished": "cancel of a job that has already succeeded or failed",
    "bundle_needed": "delete of a bundle that a job needs; delete those jobs first",
    "job_not_finished": "delete of a job that has not ended, or still holds devices; a gate of one that has not ended",
    "job_not_running": "a profile of a job that waits, starts, is being cancelled or has ended",
    "not_comparable": (
        "a gate against a job that did other work, or did it on other devices; `detail` says what differs"
    ),
    "profile_running": "a profile of a job that is being profiled; `detail` names that profile",
    "node_in_use": "forgetting a node that is alive, or on which a lease has not expired",
    "wrong_offset": (
        "what a node sends does not begin where the file, or its upload, ends; `Upload-Offset` says where that is"
    ),
    "unboxed_nodes": (
        "a token for a second tenant while a live node puts no box around jobs; the message names the node and "
        "the ways out"
    ),
    "bundle_quota": (
        "all your bundles together would be larger than `SHARDYARD_MAX_BUNDLES_BYTES`, or than your tenant's quota"
    ),
    "secret_quota": "you have 100 secrets",
    "webhook_quota": "you have 10 webhooks, or their waiting deliveries take 8 MiB already",
    "unreadable_spec": "the job was stored by a version of the service with fields that this one does not know",
    "unsupported_media_type": "the Content-Type says something other than JSON; send `Content-Type: application/json`",
    "body_too_large": (
        "the body has more than `SHARDYARD_MAX_BODY_BYTES`, or a bundle more than `SHARDYARD_MAX_BUNDLE_BYTES`"
    ),
    "range_not_satisfiable": "the Range begins after the end of the file",
    "invalid_request": "a parameter is wrong; `errors` says which",
    "invalid_spec": "the job spec breaks a rule, or names what does not exist",
    "not_supported": "a valid request that this version does not support",
    "unknown_pool": "no node has registered for that pool",
    "too_large_for_pool": "no node of the pool has that many devices",
    "unknown_bundle": (
        "the spec names a bundle that you have not uploaded, or that was deleted; upload it and submit again"
    ),
    "unknown_secret": "the spec names a secret that you do not have; `errors` says which, and names similar ones",
    "wrong_digest": "the file that a node has sent does not match `Repr-Digest`; nothing is kept of it",
    "bad_bundle": "the body is not a zip, or breaks a rule",
    "too_many_uploads": (
        "more bundles are arriving than the service accepts at a time; try again after `Retry-After` seconds"
    ),
    "too_many_transfers": "a node has as many requests at a time (8), or unfinished uploads (64), as it may have",
    "too_many_streams": "your token, or your tenant, has the largest allowed number of event streams open",
    "too_many_reads": (
        "too many large answers for your tenant are being prepared, or too many of its requests `wait`; try again "
        "after `Retry-After` seconds"
    ),
    "rate_limited": (
        "your token or your tenant sends more requests than it may, or more than the service gets to while others"
        " ask, or too many sign-ins have begun from your address; try again after `Retry-After` seconds"
    ),
    "quota_exceeded": (
        "your tenant or your token uses all that its quota allows; `detail` says what is used, what is allowed, "
        "and what frees room"
    ),
    "headers_too_large": "the request's headers are too large",
    "internal_error": "a fault of the service; its log has more",
    "storage_mismatch": "the storage directory here is not the one that the rest of the service uses",
    "secret_key_unusable": "the service has no key to encrypt secrets with; for the operator: keys of secrets",
    "format_mismatch": "the control Redis was written by a version of the service that this one cannot work alongside",
    "store_full": (
        "the control Redis has no room for anything new; nothing was stored. Everything else works: reading, "
        "cancelling, deleting, and what runs"
    ),
    "unavailable": "Redis does not answer; nothing was changed, try again after `Retry-After` seconds",
    "storage_low": (
        "a disk of the service has less free space than the service keeps for itself; nothing was stored. Delete "
        "jobs, and try again after `Retry-After` seconds, with the same Idempotency-Key. Everything else works: "
        "reading, cancelling, deleting"
    ),
    "storage_unavailable": (
        "the service keeps its files in a bucket, which does not answer, or refuses; what is there cannot be read now, "
        "and is not lost: try again after `Retry-After` seconds"
    ),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "public, max-age=3600",
}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Shardyard</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }}
td {{ padding: 0.25rem 1rem 0.25rem 0; vertical-align: top }}
</style>
</head>
<body>
<h1>{title}</h1>
{content}
<p><a href="{up}">all problems</a> · <a href="{docs}">the API</a></p>
</body>
</html>
"""


@router.get(PAGES)
async def list_problems() -> Response:
    rows = "\n".join(
        f'<tr><td>{status}</td><td><a href="problems/{code}">{code}</a></td><td>{title}</td></tr>'
        for code, (status, title) in sorted(PROBLEMS.items(), key=_by_status)
    )
    return _page("Problems", f"<table>\n{rows}\n</table>", up="problems", docs="../docs")


@router.get(PAGES + "/{code}")
async def explain_problem(code: str) -> Response:
    """Raises NotFound."""
    if code not in PROBLEMS:
        raise NotFound(f"there is no problem {code[:100]!r}")
    status, title = PROBLEMS[code]
    words = EXPLANATIONS[code]
    sentence = words[0].upper() + words[1:]
    shown = re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(sentence, quote=False))
    content = f"<p>Status {status}, <code>{code}</code></p>\n<p>{shown}.</p>\n<p>{_WHERE}</p>"
    return _page(title, content, up="../problems", docs="../../docs")


_WHERE = (
    "The answer says more: <code>detail</code> in a sentence, <code>errors</code> which fields are wrong and what "
    "would be right, and <code>request_id</code> what to look for in the log of the service."
)


def _by_status(problem: tuple[str, tuple[int, str]]) -> tuple[int, str]:
    code, (status, _) = problem
    return status, code


def _page(title: str, content: str, *, up: str, docs: str) -> Response:
    body = _PAGE.format(title=html.escape(title, quote=False), content=content, up=up, docs=docs)
    return Response(body, headers=_HEADERS, media_type="text/html; charset=utf-8")
