"""ID tokens: who has signed in, as the identity provider asserts and proves."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Final, Protocol

import structlog
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from api.accounts.single_sign_on.config import SingleSignOnConfig
from api.accounts.single_sign_on.people import SignedInPerson
from shardyard.contract.errors import SignInFailed
from shardyard.contract.plain_text import escape_unsafe

log = structlog.get_logger(__name__)

#: Signatures that only the provider can make: neither `none`, nor those made with the client's own secret.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
#: How far the clocks of provider and service may be apart.
MAX_SKEW_SECONDS: Final = 60
_MAX_NAME_LENGTH: Final = 150
_MAX_SUBJECT_LENGTH: Final = 255
_NAMES: Final = ("preferred_username", "email", "name")


class KeySource(Protocol):
    """The provider's keys; `newer`: a token has one that is not among those. Raises Unavailable."""

    def __call__(self, *, newer: bool = False) -> Awaitable[KeySet]: ...


async def verify_answer(
    keys: KeySource, config: SingleSignOnConfig, answer: Mapping[str, Any], nonce: str | None
) -> dict[str, Any]:
    """The claims of the ID token in an answer of the token endpoint. `nonce` is that of the sign-in, if there was one.

    Raises:
        SignInFailed: it has no ID token, or one that is not for us, not signed by the provider, or expired.
        Unavailable: the provider's keys cannot be had.
    """
    text = answer.get("id_token")
    if not isinstance(text, str):
        raise SignInFailed("the identity provider sent no ID token; SHARDYARD_OIDC_SCOPES must have `openid`")
    try:
        try:
            return await asyncio.to_thread(_verify, text, await keys(), config, answer, nonce)
        except InvalidKeyIdError:  # the provider has new keys
            return await asyncio.to_thread(_verify, text, await keys(newer=True), config, answer, nonce)
    except (JoseError, ValueError, TypeError) as error:
        log.warning("id_token_refused", error=repr(error))
        raise SignInFailed("the identity provider's ID token is not valid for this sign-in; sign in again") from None


def _verify(
    text: str, keys: KeySet, config: SingleSignOnConfig, answer: Mapping[str, Any], nonce: str | None
) -> dict[str, Any]:
    """Raises JoseError, ValueError, TypeError."""
    token = jwt.decode(text, keys, algorithms=ALGORITHMS)
    claims = CodeIDToken(
        token.claims,
        token.header,
        options={
            "iss": {"essential": True, "value": config.issuer},
            "aud": {"essential": True, "value": config.client_id},
        },
        params={"nonce": nonce, "client_id": config.client_id, "access_token": answer.get("access_token")},
    )
    claims.validate(leeway=MAX_SKEW_SECONDS)
    if not 0 < len(claims["sub"]) <= _MAX_SUBJECT_LENGTH:
        raise ValueError("sub")
    return dict(claims)


def describe_person(claims: Mapping[str, Any]) -> SignedInPerson:
    found = (claims.get(name) for name in _NAMES)
    name = next((each for each in found if isinstance(each, str) and each.strip()), claims["sub"])
    return SignedInPerson(claims["sub"], escape_unsafe(name.strip()[:_MAX_NAME_LENGTH]), claims)
