"""A real identity provider (NanoIDP) in a process of its own, with people in groups, and a person with a browser."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx

CLIENT_ID, CLIENT_SECRET = "shardyard", "the-secret-of-these-tests"
CALLBACK = "http://localhost/v1/sign-in/oidc/callback"
#: Name and groups; everybody's password is their name.
PEOPLE = {"alice": ("vision",), "olga": ("operators", "vision"), "eve": ("visitors",)}
START_SECONDS = 60.0

_SETTINGS = """
config_version: 1
server: {{host: 127.0.0.1, port: {port}}}
oauth:
  issuer: {issuer}
  device_polling_interval: 1
  require_pkce: true
  clients:
    - client_id: {client}
      client_secret: {secret}
      redirect_uris: ["{callback}"]
authority_prefixes: {{groups: ""}}
security: {{require_pkce: true}}
"""
_PERSON = "  {name}: {{password: {name}, email: {name}@example.com, groups: [{groups}]}}"


@contextmanager
def running_provider(directory: Path, callback: str = CALLBACK) -> Iterator[str]:
    """The issuer of a provider that runs meanwhile. `callback` is where it may send browsers."""
    directory.mkdir(parents=True)
    port = free_port()
    issuer = f"http://localhost:{port}"
    settings = {"port": port, "issuer": issuer, "client": CLIENT_ID, "secret": CLIENT_SECRET, "callback": callback}
    (directory / "settings.yaml").write_text(_SETTINGS.format(**settings))
    people = "\n".join(_PERSON.format(name=name, groups=", ".join(groups)) for name, groups in PEOPLE.items())
    (directory / "users.yaml").write_text(f"config_version: 1\nusers:\n{people}\n")
    with (directory / "log").open("wb") as log:
        command = [sys.executable, "-m", "nanoidp", "--config", str(directory), "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
    try:
        _wait_for(f"{issuer}/.well-known/openid-configuration", process, directory / "log")
        yield issuer
    finally:
        process.terminate()
        process.wait(30)


def sign_in_there(location: str, name: str) -> str:
    """Sign somebody in at the address where the service has sent a browser; where it is sent next."""
    with httpx.Client(timeout=30) as browser:
        answer = browser.post(location, data={"username": name, "password": name})
    assert answer.status_code in (302, 303), answer.text
    return answer.headers["location"]


def enter_code(verification_uri: str, user_code: str, name: str, action: str = "authorize") -> None:
    """Have somebody enter the code of a command line, and allow it or not (`deny`)."""
    form = {"user_code": user_code, "username": name, "password": name, "action": action}
    with httpx.Client(timeout=30) as browser:
        answer = browser.post(verification_uri, data=form)
    assert answer.status_code == 200, answer.text


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"no provider after {START_SECONDS:g} s: {log.read_text()}")
