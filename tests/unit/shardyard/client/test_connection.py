import json
from pathlib import Path

import pytest

from shardyard.client import Client, connection
from shardyard.contract.errors import Unauthenticated, Unavailable


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path))
    for name in ("SHARDYARD_URL", "SHARDYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def running(data_dir: Path, url: str = "http://127.0.0.1:1", **more: str) -> None:
    (data_dir / "admin.token").write_text("local-secret\n")
    record = {"url": url, "token_file": str(data_dir / "admin.token"), "pid": 1}
    (data_dir / "service.json").write_text(json.dumps(record | more))


def test_the_service_on_this_machine_is_found_with_its_token(data_dir: Path) -> None:
    running(data_dir)
    found = connection.find_service()
    assert found.url == "http://127.0.0.1:1"
    assert found.headers == {"Authorization": "Bearer local-secret"}
    with Client() as client:
        assert client.url == found.url


def test_the_certificate_of_the_service_on_this_machine_is_for_its_address_alone(data_dir: Path) -> None:
    running(data_dir, "https://127.0.0.1:1", certificate="/etc/tls.crt")
    assert connection.find_service().certificate == Path("/etc/tls.crt")
    assert connection.find_service("https://127.0.0.1:1", "mine").certificate == Path("/etc/tls.crt")
    assert connection.find_service("https://127.0.0.1:2", "mine").certificate is None


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"])
def test_a_certificate_that_cannot_be_read_is_said_by_its_file(data_dir: Path, content: str | None) -> None:
    file = data_dir / "tls.crt"
    if content is not None:
        file.write_text(content)
    running(data_dir, "https://127.0.0.1:1", certificate=str(file))
    with pytest.raises(Unavailable, match=r"certificate, .*tls.crt, cannot be used"):
        Client()


def test_the_local_token_never_goes_to_another_address(data_dir: Path) -> None:
    running(data_dir)
    with pytest.raises(Unauthenticated, match=r"no token for http://elsewhere; give one with --token"):
        connection.find_service("http://elsewhere")
    assert connection.find_service("http://elsewhere", "theirs").token == "theirs"


def test_a_given_token_comes_before_the_local_one(data_dir: Path) -> None:
    running(data_dir)
    assert connection.find_service(None, "mine").token == "mine"


def test_variables_name_a_service_and_what_is_given_comes_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_URL", "http://variable/")
    monkeypatch.setenv("SHARDYARD_TOKEN", "from-there")
    assert connection.find_service() == connection.ServiceAddress("http://variable", "from-there")
    assert connection.find_service("http://given", "mine") == connection.ServiceAddress("http://given", "mine")


def test_a_token_is_not_shown_by_what_holds_it() -> None:
    found = connection.find_service("http://given", "secret")
    with Client("http://given", "secret") as client:
        assert "secret" not in f"{found!r} {client!r}"


def test_an_empty_token_asks_without_one() -> None:
    assert connection.find_service("http://given", "").headers == {}


def test_without_a_service_the_message_says_how_to_start_or_name_one() -> None:
    with pytest.raises(Unavailable, match=r"`shardyard up`.*--url or SHARDYARD_URL"):
        connection.find_service(None, "t")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": "http://x"}'])
def test_a_damaged_service_file_counts_as_none(data_dir: Path, content: str) -> None:
    (data_dir / "service.json").write_text(content)
    assert connection.local_service(data_dir) is None


def test_the_default_data_directory_honours_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDYARD_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert connection.default_data_dir() == Path("/xdg/shardyard")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert connection.default_data_dir() == Path("/home/someone/.local/share/shardyard")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fe80::1", "[fe80::1]"), ("box", "box")],
)
def test_a_listening_address_becomes_one_that_can_be_reached(host: str, expected: str) -> None:
    assert connection.url_host(host) == expected
