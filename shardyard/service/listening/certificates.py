"""The certificates of a service that others join: an authority of its own, and one that it signs for the API and Redis.

    <data directory>/tls/authority.pem, authority.key    made once
                         service.pem, service.key        made anew when they are old, or for another address

Who may read the authority's key may pose as the service to its nodes: the directory is 0700, files 0600.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jobs.support import fs

AUTHORITY_DAYS, SERVICE_DAYS, RENEWAL_DAYS = 3650, 397, 60
#: A clock of another machine may be behind ours.
EARLY = timedelta(hours=1)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class CertificatesUnusable(Exception):
    """The files are there and cannot be used, or none can be made."""


@dataclass(frozen=True, slots=True)
class ServiceCertificates:
    """`authority` signs `chain`, which has the authority behind the service's own; `key` is that one's."""

    authority: Path
    chain: Path
    key: Path


@dataclass(frozen=True, slots=True)
class _Signed:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def keep_certificates(directory: Path, names: Iterable[str], now: datetime | None = None) -> ServiceCertificates:
    """The certificates of a service that is reached by these names and addresses; made or renewed where need be.

    Raises:
        CertificatesUnusable: the authority's files are damaged, or the directory cannot be written.
    """
    found = ServiceCertificates(directory / "authority.pem", directory / "service.pem", directory / "service.key")
    wanted, now = tuple(dict.fromkeys((*names, *LOCAL_NAMES))), now or datetime.now(UTC)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _keep_authority(found.authority, directory / "authority.key", now)
        if not _is_good(found, wanted, authority, now):
            made = _make_certificate(wanted, authority, now)
            chain = made.certificate.public_bytes(Encoding.PEM) + authority.certificate.public_bytes(Encoding.PEM)
            _write_pair(found.chain, chain, found.key, made.key)
    except (OSError, ValueError) as error:
        raise CertificatesUnusable(f"the certificates in {directory} cannot be used: {error}") from error
    return found


def fingerprint(chain: Path) -> str:
    """`sha256:` and the digits of the first certificate of a PEM file.

    Raises:
        CertificatesUnusable: there is none.
    """
    try:
        certificate = x509.load_pem_x509_certificates(chain.read_bytes())[0]
    except (OSError, ValueError) as error:
        raise CertificatesUnusable(f"{chain} has no certificate: {error}") from error
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def _keep_authority(file: Path, key_file: Path, now: datetime) -> _Signed:
    if file.exists() and key_file.exists():
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_file} is a key of another kind")
        return _Signed(x509.load_pem_x509_certificate(file.read_bytes()), key)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Shardyard {now:%Y-%m-%d} {os.urandom(4).hex()}")])
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _begin(name, name, key, now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(own, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(file, certificate.public_bytes(Encoding.PEM), key_file, key)
    return _Signed(certificate, key)


def _make_certificate(names: Iterable[str], authority: _Signed, now: datetime) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = authority.key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shardyard service")])
    certificate = (
        _begin(subject, authority.certificate.subject, key, now, SERVICE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _Signed(certificate, key)


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + timedelta(days=days))
    )  # fmt: skip


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(name))
    return x509.DNSName(name)


def _is_good(found: ServiceCertificates, names: Iterable[str], authority: _Signed, now: datetime) -> bool:
    """Whether the service's certificate is there, signed by the authority, for these names, and far from its end."""
    try:
        certificate = x509.load_pem_x509_certificates(found.chain.read_bytes())[0]
        certificate.verify_directly_issued_by(authority.certificate)
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        load_pem_private_key(found.key.read_bytes(), None)
    except Exception:  # noqa: BLE001  (whatever is wrong with it, another one is made)
        return False
    return set(map(_general_name, names)) <= set(known) and (
        certificate.not_valid_after_utc - now > timedelta(days=RENEWAL_DAYS)
    )


def _write_pair(file: Path, pem: bytes, key_file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """The key first: a reader that meets the old certificate with the new key keeps what it has, and looks again."""
    fs.write_private(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    fs.write_private(file, pem)
