"""What `up --listen` refuses before anything starts."""

from pathlib import Path

import pytest

from jobs.model.join_offer import OfferUnusable, read_offer
from shardyard.service.listening.listener import make_admin_token, resolve_own_address
from shardyard.service.processes import ServiceError
from shardyard.service.up import UpOptions, refuse_beside_listen


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"host": "0.0.0.0"}, "--host"),
        ({"tls_cert": Path("x")}, "--tls-cert"),
        ({"tls_key": Path("x")}, "--tls-key"),
        ({"insecure_http": True}, "--insecure-http"),
        ({"redis_url": "redis://elsewhere"}, "SHARDYARD_JOIN_FILE"),
        ({"telemetry_url": "redis://elsewhere"}, "SHARDYARD_JOIN_FILE"),
    ],
)
def test_what_contradicts_it_or_is_not_protected_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ServiceError, match=word):
        refuse_beside_listen(UpOptions(listen="10.0.0.1", **changes))  # type: ignore[arg-type]


def test_the_address_alone_is_enough_and_may_be_said_twice() -> None:
    refuse_beside_listen(UpOptions(listen="10.0.0.1"))
    refuse_beside_listen(UpOptions(listen="10.0.0.1", host="10.0.0.1"))


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "nobody.invalid", "224.0.0.1"])
def test_an_address_that_others_could_not_connect_to_here_is_refused(address: str) -> None:
    with pytest.raises(ServiceError, match="--listen"):
        resolve_own_address(address)


def test_an_address_of_this_machine_is_found() -> None:
    assert resolve_own_address("localhost") in ("127.0.0.1", "::1")
    assert resolve_own_address("127.0.0.1") == "127.0.0.1"


def test_the_operator_gets_a_token_once(tmp_path: Path) -> None:
    file = tmp_path / "admin.token"
    make_admin_token(file)
    first = file.read_text()
    make_admin_token(file)
    assert file.read_text() == first
    assert file.stat().st_mode & 0o077 == 0


def test_an_offer_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "join.json"
    with pytest.raises(OfferUnusable, match="cannot be used"):
        read_offer(file)
    file.write_text('{"url": "https://x"}')
    file.chmod(0o644)
    with pytest.raises(OfferUnusable, match="chmod 600"):
        read_offer(file)
    file.chmod(0o600)
    with pytest.raises(OfferUnusable, match="cannot be used"):
        read_offer(file)
