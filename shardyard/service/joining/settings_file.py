"""The files of a node that joined: its settings, the authority that it trusts, and the keys of secrets.

    node.env      variables of the worker, in the form that systemd reads (`EnvironmentFile=`)
    ca.pem        what signs the certificates of the service
    secret.key    the keys of secrets

The directory is 0700 and files are 0600: they have passwords. It is covered in the box around jobs, as the directory of
the keys. Lines of `node.env` that `join` does not write stay as they are.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv import dotenv_values

from jobs.support import fs
from shardyard.contract.errors import InvalidRequest, Unavailable
from shardyard.contract.joins import NodeSetup

SETTINGS, AUTHORITY, SECRET_KEYS = "node.env", "ca.pem", "secret.key"
HEAD = "# Settings of this node, written by `shardyard join`. They have passwords: keep them to yourself.\n"
_UNQUOTABLE = frozenset('"\\$`\n\r')


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Where a machine keeps what it needs as a node."""

    directory: Path

    @property
    def settings(self) -> Path:
        return self.directory / SETTINGS

    def read(self) -> dict[str, str]:
        """The variables; none where the machine has not joined.

        Raises:
            Unavailable: the file cannot be read.
        """
        try:
            if not self.settings.exists():
                return {}
            found = dotenv_values(self.settings, interpolate=False)
        except OSError as error:
            raise Unavailable(f"{self.settings} cannot be read: {error.strerror}") from error
        return {name: value for name, value in found.items() if value is not None}

    def write(self, setup: NodeSetup, chosen: Mapping[str, str]) -> dict[str, str]:
        """Keep what the service has given, with these variables beside it. All variables that the node has now; those
        of `chosen` without a value go.

        Raises:
            InvalidRequest: a value cannot be written.
            Unavailable: the disk refuses.
        """
        authority, keys = self.directory / AUTHORITY, self.directory / SECRET_KEYS
        known = self.read()
        given = {
            "SHARDYARD_REDIS_URL": with_authority(setup.redis_url, authority),
            "SHARDYARD_TELEMETRY_URL": with_authority(setup.telemetry_url, authority),
            "SHARDYARD_SUPERVISOR_REDIS_URL": with_authority(setup.supervisor_redis_url, authority),
            "SHARDYARD_SUPERVISOR_TELEMETRY_URL": with_authority(setup.supervisor_telemetry_url, authority),
            "SHARDYARD_STORAGE": bucket_variables(known).get("SHARDYARD_STORAGE", "service"),
            "SHARDYARD_URL": setup.url,
            "SHARDYARD_CA": str(authority),
            "SHARDYARD_NODE": setup.node,
            "SHARDYARD_NODE_TOKEN": setup.token or known.get("SHARDYARD_NODE_TOKEN", ""),
            "SHARDYARD_SECRET_KEY_FILE": str(keys),
        }
        variables = {name: value for name, value in (known | given | dict(chosen)).items() if value}
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            fs.write_private(authority, setup.authority.encode())
            if setup.secret_keys:
                fs.write_private(keys, setup.secret_keys.encode())
            fs.write_private(self.settings, _render(variables).encode())
        except OSError as error:
            raise Unavailable(f"{self.directory} cannot be written: {error.strerror}") from error
        return variables


def bucket_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of a bucket that a node brings its files to, and reaches by them; none where they name no bucket."""
    if not variables.get("SHARDYARD_STORAGE", "").startswith("s3:"):
        return {}
    return {name: value for name, value in variables.items() if name == "SHARDYARD_STORAGE" or name.startswith("AWS_")}


def default_directory() -> Path:
    """`shardyard` in the XDG configuration directory."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser().absolute() / "shardyard"


def with_authority(url: str, authority: Path) -> str:
    """The URL of a Redis whose certificate is checked by the authorities in a file."""
    return f"{url}{'&' if '?' in url else '?'}ssl_ca_certs={authority}"


def _render(variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        if not _UNQUOTABLE.isdisjoint(value):
            raise InvalidRequest(f'{name} has a character that the file of settings cannot hold: one of " \\ $ `')
    return HEAD + "".join(f'{name}="{value}"\n' for name, value in sorted(variables.items()))
