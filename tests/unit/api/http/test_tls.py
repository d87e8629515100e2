"""When the API serves HTTPS, when it refuses plain HTTP, and what it says of files that it cannot serve with."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from api.http.exposure import UnsafeToStart
from api.http.tls import ServerCertificate, choose_certificate
from jobs.model.settings import Settings
from tests.support.samples.certificates import DAY, make_certificate

Break = Callable[[Path, Path], object]


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "gpu-1.example.org"])
def test_an_address_that_others_reach_is_refused_without_tls(host: str) -> None:
    with pytest.raises(UnsafeToStart) as refused:
        choose_certificate(host, None, None, insecure_http=False)
    for words in (
        f"refusing to listen on {host} without TLS",
        "--tls-cert",
        "--tls-key",
        "--insecure-http",
        "127.0.0.1",
    ):
        assert words in str(refused.value)
    assert choose_certificate(host, None, None, insecure_http=True) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_own_machine_is_served_plain_http(host: str) -> None:
    assert choose_certificate(host, None, None, insecure_http=False) is None


def test_a_certificate_is_served_with_on_every_address(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path)
    for host in ("127.0.0.1", "0.0.0.0"):
        found = choose_certificate(host, chain, key, insecure_http=False)
        assert found is not None
        assert (found.chain, found.key) == (chain, key)
        assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_certificate_alone_and_a_key_alone_are_refused(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path)
    with pytest.raises(UnsafeToStart, match=r"SHARDYARD_TLS_CERT .* is set and SHARDYARD_TLS_KEY .* is not"):
        choose_certificate("0.0.0.0", chain, None, insecure_http=True)
    with pytest.raises(UnsafeToStart, match=r"SHARDYARD_TLS_KEY .* is set and SHARDYARD_TLS_CERT .* is not"):
        choose_certificate("0.0.0.0", None, key, insecure_http=True)


def test_a_setting_that_is_empty_is_none() -> None:
    assert Settings.model_validate({"tls_cert": "", "tls_key": ""}).tls_cert is None


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lambda chain, key: chain.unlink(), r"SHARDYARD_TLS_CERT .* cannot be read: No such file"),
        (lambda chain, key: chain.write_text("nothing"), r"SHARDYARD_TLS_CERT .* no certificate in PEM format"),
        (lambda chain, key: key.unlink(), r"SHARDYARD_TLS_KEY .* cannot be read: No such file"),
        (
            lambda chain, key: (key.unlink(), key.mkdir(mode=0o700)),
            r"SHARDYARD_TLS_KEY .* cannot be read: Is a directory",
        ),
        (lambda chain, key: key.write_text("nothing"), r"SHARDYARD_TLS_KEY .* no private key in PEM format"),
        (lambda chain, key: key.chmod(0o604), r"SHARDYARD_TLS_KEY .* read or changed by everybody; run `chmod o= "),
        (
            lambda chain, key: make_certificate(key.parent / "other")[1].replace(key),
            r"SHARDYARD_TLS_KEY .* is not the key of the first certificate in .*tls.crt",
        ),
        (lambda chain, key: make_certificate(chain.parent, ends=-DAY / 2), r"SHARDYARD_TLS_CERT .* expired on 20"),
        (
            lambda chain, key: make_certificate(chain.parent, begins=DAY / 2),
            r"SHARDYARD_TLS_CERT .* not valid before 20",
        ),
        (
            lambda chain, key: make_certificate(chain.parent, password="secret"),
            r"SHARDYARD_TLS_KEY .* is encrypted.*openssl pkey",
        ),
    ],
    ids=lambda value: "" if callable(value) else value.partition("* ")[2][:30],
)
def test_files_that_cannot_be_served_with_are_refused_in_a_sentence(tmp_path: Path, breaks: Break, words: str) -> None:
    chain, key = make_certificate(tmp_path)
    breaks(chain, key)
    with pytest.raises(UnsafeToStart, match=words) as refused:
        ServerCertificate(chain, key)
    assert "\n" not in str(refused.value)


def test_a_chain_begins_with_the_certificate_of_the_key(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path)
    other, _ = make_certificate(tmp_path / "other")
    own = chain.read_text()
    chain.write_text(own + other.read_text())
    ServerCertificate(chain, key)
    chain.write_text(other.read_text() + own)
    with pytest.raises(UnsafeToStart, match="not the key of the first certificate"):
        ServerCertificate(chain, key)


def test_files_that_are_renewed_one_after_the_other_are_served_with_once_they_fit(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path)
    served = ServerCertificate(chain, key)
    chain_anew, key_anew = make_certificate(tmp_path / "anew")
    with capture_logs() as logged:
        served.reload_renewed()
        assert logged == []
        os.replace(chain_anew, chain)
        for _ in range(2):
            served.reload_renewed()
        assert [line["event"] for line in logged] == ["certificate_not_renewed"]
        os.replace(key_anew, key)
        served.reload_renewed()
    assert [line["event"] for line in logged[1:]] == ["certificate_renewed"]
