"""One kept connection to a service, with as little of its own as there can be: the client is not what is measured."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

SECONDS = 60.0
#: A connection that has rested for longer is not used again: services close what nobody uses.
IDLE_SECONDS = 2.0


class Connection:
    """Requests one after the other, answers as JSON. For `with`."""

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._http = http.client.HTTPConnection(place.hostname or "", place.port, timeout=SECONDS)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._asked = time.monotonic()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, tag: str = "") -> tuple[str, Any]:
        """The ETag of the answer and its body; None for a body that is still the one of `tag`.

        Raises:
            RuntimeError: the service refused.
        """
        return self._ask("GET", path, None, {"If-None-Match": tag} if tag else {})

    def post(self, path: str, body: bytes) -> Any:
        """The answer's body; errors as of `get`."""
        return self._ask("POST", path, body, {})[1]

    def end(self, job: str, seconds: float = SECONDS) -> dict[str, Any]:
        """The status of a job at its end, by long polls, as the client waits; after so many seconds as it is then."""
        deadline = time.monotonic() + seconds
        tag, status = self.get(f"/v1/jobs/{job}")
        while status["finished_at"] is None and (left := deadline - time.monotonic()) > 0:
            tag, found = self.get(f"/v1/jobs/{job}?wait={min(left, 30.0):.3f}", tag)
            status = found or status
        return status  # type: ignore[no-any-return]

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[str, Any]:
        if time.monotonic() - self._asked > IDLE_SECONDS:
            self._http.close()  # before the service does; the next request opens it again
        self._http.request(method, path, body, self._headers | headers)
        answer = self._http.getresponse()
        content = answer.read()
        self._asked = time.monotonic()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return answer.headers.get("ETag", ""), json.loads(content) if content else None
