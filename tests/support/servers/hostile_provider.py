"""An identity provider over real HTTP whose ID tokens are what a test wants, so that each lie can be told by itself."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

from tests.support.servers.identity_provider import CLIENT_ID, CLIENT_SECRET

Claims = dict[str, Any]


class HostileProvider:
    """`token_answer` is what its token endpoint answers; `asked` has the path of each request."""

    def __init__(self) -> None:
        self.keys = KeySet([make_key("first")])
        self.token_answer: tuple[int, Mapping[str, Any]] = (500, {})
        self.metadata: dict[str, Any] = {}
        self.asked: list[str] = []
        self.holding: threading.Event | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self.holding is not None:
            self.holding.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)

    def claims(self, sent_nonce: str, **changes: Any) -> Claims:
        """Those of a good ID token, with some changed; None takes one out."""
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT_ID, "sub": "u-1", "iat": now, "exp": now + 300, "nonce": sent_nonce}
        found = usual | {"preferred_username": "alice", "groups": ["vision"]} | changes
        return {name: value for name, value in found.items() if value is not None}

    def sign(self, claims: Claims, algorithm: str = "RS256", **header: Any) -> str:
        key = self.keys.keys[-1]
        return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, claims, key, algorithms=[algorithm])

    def sign_with_client_secret(self, claims: Claims) -> str:
        secret = OctKey.import_key(CLIENT_SECRET.encode() * 2)
        return jwt.encode({"alg": "HS256", "kid": "first"}, claims, secret, algorithms=["HS256"])

    def answer(self, path: str) -> tuple[int, Mapping[str, Any]]:
        if self.holding is not None:
            self.holding.wait(60)
        if path == "/.well-known/openid-configuration":
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            return 200, {"issuer": self.issuer} | {
                name: f"{self.issuer}/{there}" for name, there in names.items()
            } | self.metadata
        if path == "/keys":
            return 200, self.keys.as_dict()
        return self.token_answer if path == "/token" else (404, {})


@cache
def make_key(name: str, owner: str = "the provider") -> RSAKey:
    """A key with this id; made once for each owner, since that takes long."""
    return RSAKey.generate_key(2048, {"kid": name})


@contextmanager
def hostile_provider() -> Iterator[HostileProvider]:
    provider = HostileProvider()
    provider.start()
    try:
        yield provider
    finally:
        provider.close()


def _handler_of(provider: HostileProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked.append(self.path)
            status, body = provider.answer(self.path)
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            if isinstance(body.get("location"), str):
                self.send_header("Location", body["location"])
            self.end_headers()
            self.wfile.write(text)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Nothing: the test says what it saw."""

    return Handler
