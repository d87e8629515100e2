"""Checks that this installation can run a service, for which the client's dependencies alone are not enough."""

from importlib.util import find_spec

from shardyard.contract.errors import InvalidRequest

#: Each comes with the extra `server` alone. Not torch: the host of an API needs none.
SERVER_MODULES = ("celery", "cryptography", "fastapi", "pydantic_settings", "redis", "structlog")


def require_server(command: str) -> None:
    """Refuse a command that starts or reads a service's own parts where only the client is installed.

    Raises:
        InvalidRequest: a package of the extra `server` is missing.
    """
    missing = [name for name in SERVER_MODULES if find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"`shardyard {command}` needs the server, and only the client is installed here ({missing[0]} is missing): "
            'pip install "shardyard[server]"'
        )
