"""What the operator has set about single sign-on, checked at the start of a process."""

import os
from dataclasses import dataclass, field
from typing import Final

import httpx

from api.accounts.single_sign_on.rules import AccessRule, read_rules
from api.http.exposure import is_loopback
from jobs.model.settings import Settings

CALLBACK_PATH: Final = "/v1/sign-in/oidc/callback"
_MAX_SECRET_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class SingleSignOnConfig:
    """`public_url` is the address of this service in people's browsers, without a slash at its end."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    public_url: str
    scopes: str
    rules: tuple[AccessRule, ...]
    session_seconds: int

    @property
    def redirect_uri(self) -> str:
        return self.public_url + CALLBACK_PATH

    @property
    def provider_name(self) -> str:
        """What people call the provider: the host of its address."""
        return httpx.URL(self.issuer).host

    @property
    def is_secure(self) -> bool:
        return self.public_url.startswith("https://")


def read_config(settings: Settings) -> SingleSignOnConfig | None:
    """None where no issuer is set.

    Raises:
        ValueError: a setting that goes with it is missing or wrong; the message names it.
    """
    if not settings.oidc_issuer:
        return None
    if not settings.oidc_client_id:
        raise ValueError("SHARDYARD_OIDC_ISSUER needs SHARDYARD_OIDC_CLIENT_ID, which the identity provider gives out")
    if settings.oidc_rules_file is None:
        raise ValueError(
            "SHARDYARD_OIDC_ISSUER needs SHARDYARD_OIDC_RULES_FILE, which says who gets which tenant and scopes"
        )
    if not settings.public_url:
        raise ValueError(
            "SHARDYARD_OIDC_ISSUER needs SHARDYARD_PUBLIC_URL, the address of this service in people's browsers, "
            "for example https://shardyard.example.com"
        )
    return SingleSignOnConfig(
        issuer=_checked_url(settings.oidc_issuer, "SHARDYARD_OIDC_ISSUER"),
        client_id=settings.oidc_client_id,
        client_secret=_read_secret(settings),
        public_url=_checked_url(settings.public_url, "SHARDYARD_PUBLIC_URL").rstrip("/"),
        scopes=settings.oidc_scopes,
        rules=read_rules(settings.oidc_rules_file.expanduser()),
        session_seconds=int(settings.oidc_session_seconds),
    )


def is_safe_url(url: httpx.URL) -> bool:
    """Whether what is sent there stays between the two: HTTPS, or this machine."""
    return bool(url.host) and (url.scheme == "https" or (url.scheme == "http" and is_loopback(url.host)))


def _checked_url(text: str, setting: str) -> str:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise ValueError(f"{setting} is not a URL") from None
    if not is_safe_url(url):
        raise ValueError(f"{setting} must begin with https:// (http:// is for localhost only)")
    if url.userinfo or url.query or url.fragment:
        raise ValueError(f"{setting} must have no user, no query and no fragment")
    return text


def _read_secret(settings: Settings) -> str:
    """The client's secret; "" for a public client, which has none."""
    if settings.oidc_client_secret:  # compose files set what is not given to nothing
        return settings.oidc_client_secret.get_secret_value()
    path = settings.oidc_client_secret_file
    if path is None:
        return ""
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            is_open = os.fstat(file.fileno()).st_mode & 0o077
            secret = file.read(_MAX_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"SHARDYARD_OIDC_CLIENT_SECRET_FILE cannot be read: {error}") from None
    if is_open:
        raise ValueError(f"SHARDYARD_OIDC_CLIENT_SECRET_FILE: {path} can be read by others; run `chmod 600 {path}`")
    return secret
