"""Certificates that sign themselves, made when a test needs one."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


def make_certificate(
    directory: Path, *, begins: timedelta = -DAY, ends: timedelta = DAY, name: str = "localhost", password: str = ""
) -> tuple[Path, Path]:
    """A certificate for `name` and 127.0.0.1, and its key; valid between two times from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = (
        [x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))] if name == "localhost" else [x509.DNSName(name)]
    )
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    cipher = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    directory.mkdir(parents=True, exist_ok=True)
    files = directory / "tls.crt", directory / "tls.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].touch(mode=0o600)
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher))
    return files
