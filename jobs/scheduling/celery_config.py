"""The configuration that every Celery app of this service uses, sender and receiver alike. Plain data: no celery here.

A message is only a hint, so delivery is kept as simple as it can be: JSON, acknowledged early, no
results, and a deadline on every wait.
"""

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from jobs.model.settings import Settings
from jobs.protocol.names import CELERY_KEY_PREFIX, CELERY_TASK
from jobs.store.connections.sentinels import SentinelUrl, is_sentinel_url, parse_sentinel_url

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
_TRANSPORT_OPTIONS: dict[str, Any] = {
    "global_keyprefix": CELERY_KEY_PREFIX,
    "socket_timeout": REPLY_SECONDS,
    "socket_connect_timeout": CONNECT_SECONDS,
    "socket_keepalive": True,
    "health_check_interval": 15,
}


def celery_config(settings: Settings) -> dict[str, Any]:
    """Settings for `Celery.conf.update`.

    Raises:
        ValueError: no control Redis is set, or its URL is of a kind that Celery cannot use.
    """
    url = settings.control_url()
    return {
        **(_sentinel_broker(parse_sentinel_url(url)) if is_sentinel_url(url) else _single_broker(url)),
        "broker_connection_retry_on_startup": True,
        "broker_connection_timeout": CONNECT_SECONDS,
        "result_backend": None,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "accept_content": ["json"],
        "task_serializer": "json",
        "event_serializer": "json",
        "task_acks_late": False,
        "task_protocol": 2,
        "task_default_queue": "shardyard",
        "worker_prefetch_multiplier": 1,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "enable_utc": True,
        "timezone": "UTC",
        "task_annotations": {CELERY_TASK: {"ignore_result": True}},
    }


def _single_broker(url: str) -> dict[str, Any]:
    return {"broker_url": broker_url(url), "broker_transport_options": _TRANSPORT_OPTIONS}


def _sentinel_broker(url: SentinelUrl) -> dict[str, Any]:
    """As kombu has them: each Sentinel with the login of the servers, and the rest as options."""
    username, password = (quote(url.server_options.get(name, ""), safe="") for name in ("username", "password"))
    login = f"{username}:{password}@" if username or password else ""
    addresses = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in url.sentinels)
    return {
        "broker_url": ";".join(
            f"sentinel://{login}{address}/{url.server_options.get('db', 0)}" for address in addresses
        ),
        "broker_use_ssl": dict(url.tls_options) | {"ssl_cert_reqs": url.tls_options.get("ssl_cert_reqs", "required")}
        if url.is_tls
        else None,
        "broker_transport_options": _TRANSPORT_OPTIONS
        | {"master_name": url.name, "sentinel_kwargs": url.sentinel_options},
    }


def broker_url(url: str) -> str:
    """The control Redis's URL in the form that kombu reads: `redis+socket://` for a unix socket, else unchanged.

    Raises:
        ValueError: not a redis://, rediss:// or unix:// URL.
    """
    parts = urlsplit(url)
    if parts.scheme in ("redis", "rediss"):
        return url
    if parts.scheme != "unix":
        raise ValueError(
            f"{parts.scheme or 'no'}:// is not a Redis URL; use redis://, rediss://, unix:// or redis+sentinel://"
        )
    query = dict(parse_qsl(parts.query))
    user = quote(unquote(parts.username or query.get("username", "")), safe="")
    password = quote(unquote(parts.password or query.get("password", "")), safe="")
    login = f"{user}:{password}@" if user or password else ""
    return f"redis+socket://{login}{parts.path}?virtual_host={int(query.get('db') or 0)}"
