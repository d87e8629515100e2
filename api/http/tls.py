"""The certificate that the API serves HTTPS with, and the refusal to serve other machines without one.

A certificate is renewed while the service runs: its files are looked at every few seconds, and new connections get what
is in them.
"""

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import structlog

from api.http.exposure import UnsafeToStart, is_loopback

log = structlog.get_logger(__name__)

CERTIFICATE_SETTING, KEY_SETTING = "SHARDYARD_TLS_CERT (--tls-cert)", "SHARDYARD_TLS_KEY (--tls-key)"
WAYS_OUT = (
    f"name a certificate and its key with {CERTIFICATE_SETTING} and {KEY_SETTING}; or, where a proxy ends TLS or the "
    "network is trusted, accept it with --insecure-http (SHARDYARD_INSECURE_HTTP=1); or listen on 127.0.0.1"
)
#: Far more than a chain of certificates has.
MAX_FILE_BYTES = 1024 * 1024


class ServerCertificate:
    """A certificate with those that it leads to, its key, and the context that new connections are made in."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises UnsafeToStart: the files cannot be served with."""
        self.chain, self.key = chain, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._look_at_files()
        self._load_files()

    def reload_renewed(self) -> None:
        """Serve new connections with what is in the files now, if that is usable; else with what was there before."""
        seen = self._look_at_files()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._load_files()
        except UnsafeToStart as error:
            log.error("certificate_not_renewed", error=str(error))
        else:
            log.info("certificate_renewed", file=str(self.chain))

    def _look_at_files(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_look_at_file, (self.chain, self.key)))

    def _load_files(self) -> None:
        _check_files(self.chain, self.key, datetime.now(UTC))
        try:
            self.context.load_cert_chain(self.chain, self.key, password="")  # never asked for at the terminal
        except (OSError, ssl.SSLError) as error:
            raise UnsafeToStart(f"{CERTIFICATE_SETTING}: {self.chain} cannot be served with: {error}") from error


def choose_certificate(
    host: str, chain: Path | None, key: Path | None, *, insecure_http: bool
) -> ServerCertificate | None:
    """What to serve with on the address `host`; None: plain HTTP.

    Raises:
        UnsafeToStart: the files cannot be served with; or there are none, other machines can reach the address, and
            the operator has not agreed to that.
    """
    if chain is not None and key is not None:
        return ServerCertificate(chain.expanduser(), key.expanduser())
    if chain is not None or key is not None:
        there, lacking = (CERTIFICATE_SETTING, KEY_SETTING) if key is None else (KEY_SETTING, CERTIFICATE_SETTING)
        raise UnsafeToStart(f"{there} is set and {lacking} is not: HTTPS takes both")
    if not insecure_http and not is_loopback(host):
        raise UnsafeToStart(
            f"refusing to listen on {host} without TLS, since whoever is on the network could read tokens: {WAYS_OUT}"
        )
    return None


def _look_at_file(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file at a path."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _check_files(chain: Path, key: Path, now: datetime) -> None:
    """Raises UnsafeToStart: the first thing that is wrong with a certificate and its key."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificates(_read_file(chain, CERTIFICATE_SETTING))[0]
    except ValueError:
        raise UnsafeToStart(f"{CERTIFICATE_SETTING}: {chain} has no certificate in PEM format") from None
    _check_dates(chain, certificate.not_valid_before_utc, certificate.not_valid_after_utc, now)
    secret = _read_file(key, KEY_SETTING)
    if key.stat().st_mode & 0o007:
        raise UnsafeToStart(f"{KEY_SETTING}: {key} can be read or changed by everybody; run `chmod o= {key}`")
    try:
        private = load_pem_private_key(secret, None)
    except TypeError:
        raise UnsafeToStart(
            f"{KEY_SETTING}: {key} is encrypted, and nobody is there to type its password; write it without one "
            f"(`openssl pkey -in {key} -out NEW`)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UnsafeToStart(f"{KEY_SETTING}: {key} has no private key in PEM format") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UnsafeToStart(f"{KEY_SETTING}: {key} is not the key of the first certificate in {chain}")


def _check_dates(chain: Path, begins: datetime, ends: datetime, now: datetime) -> None:
    if now > ends:
        raise UnsafeToStart(f"{CERTIFICATE_SETTING}: the certificate in {chain} expired on {ends:%Y-%m-%d}; renew it")
    if now < begins:
        raise UnsafeToStart(
            f"{CERTIFICATE_SETTING}: the certificate in {chain} is not valid before {begins:%Y-%m-%d %H:%M} UTC"
        )


def _read_file(path: Path, setting: str) -> bytes:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise UnsafeToStart(f"{setting}: {path} cannot be read: {error.strerror}") from error
