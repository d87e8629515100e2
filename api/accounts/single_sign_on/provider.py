"""The operator's identity provider: its metadata, its keys and its token endpoint, asked with deadlines and limits.

Only addresses that the operator set, or that the issuer's own metadata names, are ever asked, and redirects are not
followed. The parts of the protocols are authlib's; its HTTP client is not used, since an answer must have a size limit
and one deadline for all of it.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec
import structlog
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from api.accounts.single_sign_on.config import SingleSignOnConfig, is_safe_url
from api.accounts.single_sign_on.id_tokens import describe_person, verify_answer
from api.accounts.single_sign_on.pending import PendingSignIn
from api.accounts.single_sign_on.people import ProviderRefused, SignedInPerson
from shardyard.contract.errors import SignInFailed, Unavailable
from shardyard.contract.plain_text import escape_unsafe

log = structlog.get_logger(__name__)

CONNECT_SECONDS: Final = 5.0
#: Of one request, with all of its answer.
REQUEST_SECONDS: Final = 10.0
MAX_ANSWER_BYTES: Final = 256 * 1024
#: Metadata and keys are asked for again after so long; keys also for an ID token with one that is not known.
METADATA_SECONDS: Final = 3600.0
KEYS_AGAIN_SECONDS: Final = 30.0
#: How long a provider that did not answer is left alone.
RETRY_SECONDS: Final = 3.0
#: Requests at a time: whoever may begin a sign-in is not known yet.
MAX_REQUESTS: Final = 16
#: Of an access token, as a header carries it.
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_ADVICE: Final = "try again in a minute, or sign in with a token"


class ProviderMetadata(msgspec.Struct, frozen=True):
    """What the discovery document says, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    device_authorization_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class IdentityProvider:
    def __init__(self, config: SingleSignOnConfig) -> None:
        self._config = config
        self._client: httpx.AsyncClient | None = None
        self._requests = 0
        self._metadata_lock, self._keys_lock = asyncio.Lock(), asyncio.Lock()
        self._metadata: tuple[ProviderMetadata, float] | None = None
        self._keys: tuple[KeySet, float] | None = None
        self._failed_until = 0.0

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def authorization_url(self, pending: PendingSignIn) -> str:
        """Where a browser goes to sign in. Raises Unavailable."""
        metadata = await self.metadata()
        url: str = prepare_grant_uri(
            metadata.authorization_endpoint,
            self._config.client_id,
            "code",
            redirect_uri=self._config.redirect_uri,
            scope=self._config.scopes,
            state=pending.state,
            nonce=pending.nonce,
            code_challenge=create_s256_code_challenge(pending.verifier),
            code_challenge_method="S256",
        )
        return url

    async def request_token(self, grant_type: str, **parameters: str) -> dict[str, Any]:
        """An answer of the token endpoint.

        Raises:
            ProviderRefused: it is an error.
            Unavailable: there is none.
        """
        metadata = await self.metadata()
        body = prepare_token_request(grant_type, **parameters)
        return await self._post(metadata.token_endpoint, body)

    async def request_device_code(self) -> dict[str, Any]:
        """An answer of the device authorization endpoint; {} where the provider has none. Raises as `request_token`."""
        metadata = await self.metadata()
        if not metadata.device_authorization_endpoint:
            return {}
        return await self._post(
            metadata.device_authorization_endpoint, str(httpx.QueryParams({"scope": self._config.scopes}))
        )

    async def identify(self, answer: Mapping[str, Any], nonce: str | None) -> SignedInPerson:
        """Who has signed in, by an answer of the token endpoint; `nonce` is that of the sign-in, if there was one. The
        ID token says who it is. Claims that the access rules need and that it lacks are asked for.

        Raises:
            SignInFailed: it cannot be proven.
            Unavailable: the provider does not answer.
        """
        claims = await verify_answer(self.keys, self._config, answer, nonce)
        wanted = {rule.claim for rule in self._config.rules}
        if not wanted <= claims.keys():
            claims = await self._ask_for_claims(answer, claims["sub"]) | claims
        return describe_person(claims)

    async def _ask_for_claims(self, answer: Mapping[str, Any], subject: str) -> dict[str, Any]:
        """What the provider says of the person whose access token this is. Raises SignInFailed, Unavailable."""
        url, token = (await self.metadata()).userinfo_endpoint, answer.get("access_token")
        if not url or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return {}
        status, found = await self._send("GET", url, {"Authorization": f"Bearer {token}"})
        if status != httpx.codes.OK:
            raise _unavailable(f"it returned no information about the user (status {status})")
        if found.get("sub") != subject:
            raise SignInFailed("the identity provider returned a different user; sign in again")
        return found

    async def metadata(self) -> ProviderMetadata:
        """Raises Unavailable."""
        async with self._metadata_lock:
            if self._metadata is not None and time.monotonic() < self._metadata[1]:
                return self._metadata[0]
            if time.monotonic() < self._failed_until:
                raise _unavailable("it did not answer a moment ago")
            try:
                found = await self._read_metadata()
            except Unavailable:
                self._failed_until = time.monotonic() + RETRY_SECONDS
                raise
            self._metadata = found, time.monotonic() + METADATA_SECONDS
            return found

    async def keys(self, *, newer: bool = False) -> KeySet:
        """The provider's keys; `newer`: a token has one that is not among those. Raises Unavailable."""
        metadata = await self.metadata()
        async with self._keys_lock:
            now = time.monotonic()
            if self._keys is not None:
                age = now - self._keys[1]
                if age < (KEYS_AGAIN_SECONDS if newer else METADATA_SECONDS):
                    return self._keys[0]
            status, answer = await self._send("GET", metadata.jwks_uri)
            try:
                keys = KeySet.import_key_set(answer)  # type: ignore[arg-type]  # checked by reading it
            except (JoseError, ValueError, KeyError, TypeError, AttributeError):
                raise _unavailable(f"its keys cannot be read (status {status})") from None
            self._keys = keys, now
            return keys

    async def _read_metadata(self) -> ProviderMetadata:
        """Raises Unavailable."""
        issuer = self._config.issuer
        status, answer = await self._send("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            found = msgspec.convert(answer, ProviderMetadata)
        except msgspec.ValidationError as error:
            raise _unavailable(f"its discovery document cannot be used (status {status}): {error}") from None
        if found.issuer != issuer:
            raise _unavailable(
                f"it calls itself {escape_unsafe(found.issuer[:200])}; SHARDYARD_OIDC_ISSUER must be exactly that"
            )
        optional = filter(None, (found.userinfo_endpoint, found.device_authorization_endpoint))
        for url in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, *optional):
            _require_safe(url)
        return found

    async def _post(self, url: str, body: str) -> dict[str, Any]:
        """A request of this client. Raises ProviderRefused, Unavailable."""
        config, metadata = self._config, await self.metadata()
        supported = metadata.token_endpoint_auth_methods_supported
        method = "client_secret_basic" if "client_secret_basic" in supported else "client_secret_post"
        auth = ClientAuth(config.client_id, config.client_secret, method if config.client_secret else "none")
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        _, headers, body = auth.prepare("POST", url, headers, body)
        status, answer = await self._send("POST", url, headers, body)
        code = answer.get("error")
        if code is None and status == httpx.codes.OK:
            return answer
        if not isinstance(code, str) or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _unavailable(f"it answered with status {status}")
        if code in ("invalid_client", "unauthorized_client"):
            log.error("oidc_client_refused", code=code, client_id=config.client_id)
            raise _unavailable("it does not accept this service's client; the operator finds more in the service's log")
        raise ProviderRefused(code)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON object of an answer ({} where it is none). Raises Unavailable."""
        if self._requests >= MAX_REQUESTS:
            raise _unavailable("too many people are signing in at the moment")
        self._requests += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                status, text = await self._read_answer(method, url, headers, body)
        except TimeoutError:
            raise _unavailable(f"it did not answer within {REQUEST_SECONDS:g} s") from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            log.warning("oidc_provider_not_reached", url=url, error=repr(error))
            raise _unavailable("it cannot be reached") from None
        finally:
            self._requests -= 1
        try:
            answer = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = None
        return status, answer if isinstance(answer, dict) else {}

    async def _read_answer(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: str | None
    ) -> tuple[int, bytes]:
        if self._client is None:  # made at the first sign-in: it reads all authorities
            timeout = httpx.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
            self._client = httpx.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)
        async with self._client.stream(method, url, headers=headers, content=body) as answer:
            parts, left = [], MAX_ANSWER_BYTES
            async for part in answer.aiter_bytes():
                left -= len(part)
                if left < 0:
                    raise _unavailable(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
                parts.append(part)
            return answer.status_code, b"".join(parts)


def _require_safe(text: str) -> None:
    """Raises Unavailable."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise _unavailable("its discovery document has something that is not a URL") from None
    if not is_safe_url(url):
        raise _unavailable(f"its discovery document names {url.host}, which would be reached without TLS")


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"the identity provider cannot be used: {why}; {_ADVICE}")
