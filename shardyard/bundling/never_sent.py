"""What is never packed, whatever .gitignore and --include say: credentials, and the data of Shardyard itself.

Whoever may submit jobs of a tenant can read its bundles. What a job needs to know goes into its spec as a secret.
"""

import os
import re
import stat
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

DATA_DIRECTORY = "Shardyard's own data"
PRIVATE_KEY = "a private key"
TOKEN = "a token or a password; --secret gives them to jobs"  # noqa: S105  # a reason
VARIABLES = "environment variables; --env and --secret give them to jobs"

#: Patterns of file names in lower case, and why such files stay here; the first match counts.
FILES: tuple[tuple[str, str], ...] = (
    (".env.example", ""),
    (".env.sample", ""),
    (".env.template", ""),
    (".env.dist", ""),
    (".env", VARIABLES),
    (".env.*", VARIABLES),
    (".envrc", VARIABLES),
    ("*.pub", ""),
    ("id_rsa*", PRIVATE_KEY),
    ("id_dsa*", PRIVATE_KEY),
    ("id_ecdsa*", PRIVATE_KEY),
    ("id_ed25519*", PRIVATE_KEY),
    *((pattern, PRIVATE_KEY) for pattern in ("*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx")),
    *((pattern, TOKEN) for pattern in ("token", "*.token", "token.txt", "token.json", ".vault-token", "logins.json")),
    *((name, TOKEN) for name in (".netrc", "_netrc", ".pypirc", ".npmrc", ".git-credentials", ".pgpass", ".my.cnf")),
    *((name, TOKEN) for name in (".dockercfg", ".s3cfg", ".boto", ".htpasswd", "kaggle.json", "credentials.json")),
    ("client_secret*.json", TOKEN),
)
#: Directories in which other tools keep credentials.
DIRECTORIES = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", "gcloud"})
#: Files of a directory that is a service's own.
SERVICE_FILES = ("admin.token", "up.lock")
#: Larger files are no keys.
MAX_READ_BYTES = 16 * 1024
_KEY = re.compile(rb"^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s*$", re.MULTILINE)
_OWN_TOKEN = re.compile(rb"\s*sy_[0-9a-f]{8,64}_[\w-]{20,128}\s*")


class NeverSent:
    """The rules, with the paths of the services on this machine."""

    def __init__(self, private: Iterable[Path] = ()) -> None:
        self._private = {os.path.realpath(path) for path in private}

    def why_directory(self, directory: str) -> str:
        """Why nothing of a directory is sent; empty where it may be."""
        if os.path.realpath(directory) in self._private or is_data_directory(directory):
            return DATA_DIRECTORY
        return TOKEN if os.path.basename(directory).lower() in DIRECTORIES else ""

    def why_file(self, file: str, status: os.stat_result) -> str:
        """Why a file is not sent, by its name, else by what is in it; empty where it may be."""
        real = os.path.realpath(file)
        if real in self._private:
            return DATA_DIRECTORY
        names = {os.path.basename(path).lower() for path in (file, real)}
        if found := next(filter(None, map(_why_name, sorted(names))), ""):
            return found
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_READ_BYTES
        return _why_content(file) if is_small else ""


def is_data_directory(directory: str) -> bool:
    """Whether a service keeps, or kept, its data in this directory."""
    return all(os.path.exists(os.path.join(directory, name)) for name in SERVICE_FILES)


def _why_name(name: str) -> str:
    return next((why for pattern, why in FILES if fnmatchcase(name, pattern)), "")


def _why_content(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            content = opened.read(MAX_READ_BYTES)
    except OSError:
        return ""  # packing says that it cannot be read
    if _KEY.search(content):
        return PRIVATE_KEY
    return TOKEN if _OWN_TOKEN.fullmatch(content) else ""
