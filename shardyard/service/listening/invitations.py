"""Invites a machine: a token to join with, and the command that is typed there."""

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from shardyard.client import Client
from shardyard.contract.errors import ShardyardError
from shardyard.service.listening.certificates import fingerprint

INVITED_SECONDS = 86_400
#: Of tokens to join with.
JOIN_SCOPE = "join"


def invite(
    client: Client, url: str, chain: Path | None, node: str | None = None, seconds: int = INVITED_SECONDS
) -> str:
    """The command by which a machine joins with a new token, once or several times, until that expires; `node`: under
    this name alone. `chain` has the certificate of the service first; None: it is one that every machine trusts.

    Raises:
        ShardyardError: the service refuses, or does not answer.
        CertificatesUnusable: the file has no certificate.
    """
    _forget_expired(client)
    name = f"join {node}" if node else "join"
    made = client.create_token(name, scopes=[JOIN_SCOPE], expires_in_seconds=seconds, node=node)
    command = ["shardyard", "join", url, "--token", made.token]
    command += [] if chain is None else ["--fingerprint", fingerprint(chain)]
    return shlex.join(command)


def _forget_expired(client: Client) -> None:
    """Remove tokens to join with that are good no longer: each start of a service makes one."""
    now = datetime.now(UTC)
    with suppress(ShardyardError):  # they open nothing
        for token in client.tokens():
            if JOIN_SCOPE in token.scopes and token.expires_at is not None and token.expires_at < now:
                client.revoke_token(token.id)
