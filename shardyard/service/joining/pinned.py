"""HTTPS to a service whose certificate is known by its fingerprint alone: nobody here knows its authority yet."""

import hmac
import re
import socket
import ssl
from hashlib import sha256
from urllib.parse import SplitResult, urlsplit

from shardyard.contract.errors import InvalidRequest, Unavailable

CONNECT_SECONDS = 10.0
_FINGERPRINT = re.compile(r"(sha256:)?([0-9a-f]{2}:?){32}")


def split_address(url: str) -> SplitResult:
    """Raises InvalidRequest: it is no address of a service that others may join."""
    parts = urlsplit(url if "//" in url else f"https://{url}")
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidRequest(
            f"{url[:200]!r} is not an address to join: give https://HOST:PORT, as `shardyard up` prints it"
        )
    return parts


def trust_fingerprint(address: SplitResult, fingerprint: str) -> ssl.SSLContext:
    """Trusts the certificate that the service has now if it is the one with this fingerprint, and no other. Nothing is
    sent before that is known.

    Raises:
        InvalidRequest: the fingerprint is none, or the certificate has another one.
        Unavailable: nobody answers.
    """
    text = fingerprint.strip().lower()
    if _FINGERPRINT.fullmatch(text) is None:
        raise InvalidRequest("--fingerprint is not a SHA-256: it is `sha256:` with 64 hexadecimal digits")
    wanted = text.removeprefix("sha256:").replace(":", "")
    certificate = _fetch_certificate(address)
    found = sha256(certificate).hexdigest()
    if not hmac.compare_digest(found, wanted):
        raise InvalidRequest(
            f"the certificate at {address.netloc} has the fingerprint sha256:{found}, which is not the one given: "
            "either something else answers there, or the service has a new certificate. Nothing was sent. "
            "`shardyard invite` on the service's machine prints the command anew"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # it is this very certificate, whatever it was made for
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return context


def _fetch_certificate(address: SplitResult) -> bytes:
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # its fingerprint is compared next
    place = (str(address.hostname), address.port or 443)
    try:
        with (
            socket.create_connection(place, timeout=CONNECT_SECONDS) as line,
            unchecked.wrap_socket(line, server_hostname=place[0]) as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise Unavailable(
            f"{address.netloc} cannot be reached over HTTPS: {error.strerror or error}. Is the service up, was it "
            "started with --listen, and does its firewall let this machine in?"
        ) from error
