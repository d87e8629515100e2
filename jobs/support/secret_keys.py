"""The keys that tenants' secrets are encrypted with, which are kept in a file outside Redis, and the encryption itself.

The file has a key on each line, the newest first: it encrypts, and all of them decrypt. So a key is replaced in two
steps, as `add_key` begins them. A ciphertext is bound to its tenant and name: Redis cannot pass one off as another.

    1 byte    version of this layout
    4 bytes   which key
    12 bytes  nonce
    the rest  AES-256-GCM

`cryptography` is imported when something is encrypted or decrypted: ranks and most processes never need it.
"""

import base64
import binascii
import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shardyard.contract.errors import SecretKeyUnusable

KEY_BYTES, NONCE_BYTES = 32, 12
_VERSION, _KEY_ID_BYTES = b"\x01", 4
#: Of a ciphertext, what says which key it needs.
HEAD_BYTES = len(_VERSION) + _KEY_ID_BYTES
#: Far more than a file of keys has.
MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SecretKeys:
    """The keys of a file by the heads of their ciphertexts, the newest first."""

    path: Path
    by_head: dict[bytes, bytes] = field(repr=False)

    @property
    def newest_head(self) -> bytes:
        return next(iter(self.by_head))


def read_keys(path: Path) -> SecretKeys:
    """Raises SecretKeyUnusable: there is no such file, others can read it, or it holds no key."""
    try:
        if path.stat().st_mode & 0o077:
            raise SecretKeyUnusable(f"the file of secret keys, {path}, can be read by others; run `chmod 600 {path}`")
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        raise SecretKeyUnusable(
            f"there is no file of secret keys at {path}: put the service's there, or make its first one with "
            f"`shardyard secret new-key {path}`. The API and all workers need the same one (SHARDYARD_SECRET_KEY_FILE)"
        ) from None
    except OSError as error:
        raise SecretKeyUnusable(f"the file of secret keys cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    keys = [_parse_key(line, path) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise SecretKeyUnusable(
            f"the file of secret keys, {path}, has none; `shardyard secret new-key {path}` adds one"
        )
    return SecretKeys(path, {_head_of(key): key for key in keys})


def _parse_key(line: str, path: Path) -> bytes:
    with suppress(binascii.Error, ValueError):
        key = base64.urlsafe_b64decode(line)
        if len(key) == KEY_BYTES:
            return key
    raise SecretKeyUnusable(
        f"the file of secret keys, {path}, has a line that is not a key: 32 bytes in URL-safe base64"
    )


def _head_of(key: bytes) -> bytes:
    return _VERSION + hashlib.sha256(key).digest()[:_KEY_ID_BYTES]


def new_key_line() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode() + "\n"


def create_key_file(path: Path) -> None:
    """Make a file with one key, unless there is one. It appears whole: two processes that race agree on one key.

    Raises:
        OSError: the directory refuses it.
    """
    if not path.exists():
        part = _write_part(path, new_key_line())
        with suppress(FileExistsError):
            os.link(part, path)
        part.unlink()


def add_key(path: Path) -> None:
    """Put a new key before those of a file, which is created if needed. Secrets of the older ones can still be read.

    Raises:
        SecretKeyUnusable: there is a file that cannot be used.
        OSError: the directory refuses it.
    """
    older = ""
    if path.exists():
        read_keys(path)
        older = path.read_text()
    _write_part(path, new_key_line() + older).replace(path)


def _write_part(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return part


# -- encryption ------------------------------------------------------------------------------------


def encrypt_secret(keys: SecretKeys, tenant: str, name: str, value: str) -> bytes:
    """The ciphertext of a value, under the newest key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    head, nonce = keys.newest_head, secrets.token_bytes(NONCE_BYTES)
    cipher = AESGCM(keys.by_head[head])
    return head + nonce + cipher.encrypt(nonce, value.encode(), _bind(tenant, name))


def decrypt_secret(keys: SecretKeys, tenant: str, name: str, sealed: bytes) -> str:
    """The value of a ciphertext.

    Raises:
        SecretKeyUnusable: the file lacks its key, or the ciphertext is not that of this tenant's secret.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = keys.by_head.get(sealed[:HEAD_BYTES])
    if key is None:
        raise SecretKeyUnusable(
            f"the secret {name!r} was encrypted with a key that {keys.path} does not have: put the service's file of "
            f"secret keys there, or put the secret again (`shardyard secret put {name}`)"
        )
    nonce, body = sealed[HEAD_BYTES : HEAD_BYTES + NONCE_BYTES], sealed[HEAD_BYTES + NONCE_BYTES :]
    try:
        return AESGCM(key).decrypt(nonce, body, _bind(tenant, name)).decode()
    except (InvalidTag, ValueError):
        raise SecretKeyUnusable(
            f"the secret {name!r} is damaged in the control Redis; put it again (`shardyard secret put {name}`)"
        ) from None


def _bind(tenant: str, name: str) -> bytes:
    """What a ciphertext is bound to. Neither part holds a NUL."""
    return f"shardyard secret\0{tenant}\0{name}".encode()
