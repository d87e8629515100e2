"""Certificates that `up --listen` makes: what they are for, when they are made anew, and who may read their keys."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import DNSName, IPAddress

from shardyard.service.listening.certificates import (
    RENEWAL_DAYS,
    SERVICE_DAYS,
    CertificatesUnusable,
    fingerprint,
    keep_certificates,
)


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(file.read_bytes())[0]


def test_the_service_is_known_by_its_address_and_its_authority_signs_no_other_authority(
    tmp_path: Path,
) -> None:
    made = keep_certificates(tmp_path / "tls", ("box.lan", "10.0.0.1"))
    certificate, authority = read(made.chain), read(made.authority)
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "box.lan" in names.get_values_for_type(DNSName)
    assert {"10.0.0.1", "127.0.0.1"} <= set(map(str, names.get_values_for_type(IPAddress)))
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert fingerprint(made.chain) == f"sha256:{sha256(ssl.PEM_cert_to_DER_cert(first_pem(made.chain))).hexdigest()}"


def first_pem(file: Path) -> str:
    end = "-----END CERTIFICATE-----\n"
    return file.read_text().partition(end)[0] + end


def test_nobody_else_may_read_the_keys(tmp_path: Path) -> None:
    keep_certificates(tmp_path / "tls", ("10.0.0.1",))
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "tls").iterdir()} == {0o600}


def test_they_stay_until_they_are_old_or_the_address_is_another(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    made = keep_certificates(tmp_path, ("10.0.0.1",), now)
    first, authority = read(made.chain), made.authority.read_bytes()
    keep_certificates(tmp_path, ("10.0.0.1",), now + timedelta(days=SERVICE_DAYS - RENEWAL_DAYS - 1))
    assert read(made.chain) == first
    keep_certificates(tmp_path, ("10.0.0.2",), now)
    moved = read(made.chain)
    assert moved != first
    keep_certificates(tmp_path, ("10.0.0.2",), now + timedelta(days=SERVICE_DAYS - RENEWAL_DAYS + 1))
    assert read(made.chain) != moved
    assert made.authority.read_bytes() == authority, "nodes go on trusting it"


def test_a_damaged_certificate_is_made_anew_and_a_damaged_authority_is_named(tmp_path: Path) -> None:
    made = keep_certificates(tmp_path, ("10.0.0.1",))
    made.chain.write_text("nothing")
    keep_certificates(tmp_path, ("10.0.0.1",))
    read(made.chain).verify_directly_issued_by(read(made.authority))
    made.authority.write_text("nothing")
    with pytest.raises(CertificatesUnusable, match=str(tmp_path)):
        keep_certificates(tmp_path, ("10.0.0.1",))
    with pytest.raises(CertificatesUnusable, match="no certificate"):
        fingerprint(made.authority)
