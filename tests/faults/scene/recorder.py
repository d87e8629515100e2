"""An HTTP client that remembers everything it was told, for the checker."""

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

RETRY_SECONDS = 0.2
#: Statuses of a service that is just away, and asks to be tried again.
PASSING = frozenset({502, 503, 504})


@dataclass(frozen=True)
class Exchange:
    """One request, and its answer: status 0 when none came."""

    at: float
    method: str
    path: str
    key: str
    status: int
    job: str
    state: str


class Caller:
    """Calls the API at `url`. May be used by several threads."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
        self._lock = threading.Lock()
        self.exchanges: list[Exchange] = []

    def call(self, method: str, path: str, *, key: str = "", **request: Any) -> httpx.Response:
        """Ask once.

        Raises:
            httpx.HTTPError: no answer came.
        """
        headers = {"Idempotency-Key": key} if key else {}
        try:
            answer = self._http.request(method, path, headers=headers, **request)
        except httpx.HTTPError:
            self._note(Exchange(time.time(), method, path, key, 0, "", ""))
            raise
        body = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        job, state = str(body.get("id", "")), str(body.get("state", ""))
        self._note(Exchange(time.time(), method, path, key, answer.status_code, job, state))
        return answer

    def insist(
        self, method: str, path: str, *, key: str = "", seconds: float = 180.0, **request: Any
    ) -> httpx.Response:
        """Ask until an answer comes that is not about the service being away.

        Raises:
            AssertionError: none came within `seconds`.
        """
        deadline, last = time.monotonic() + seconds, "nothing"
        while time.monotonic() < deadline:
            try:
                answer = self.call(method, path, key=key, **request)
            except httpx.HTTPError as error:
                last = repr(error)
            else:
                if answer.status_code not in PASSING:
                    return answer
                last = answer.text
            time.sleep(RETRY_SECONDS)
        raise AssertionError(f"no answer to {method} {path} within {seconds:g} s: {last}")

    def submit(self, spec: Mapping[str, Any], *, key: str = "", seconds: float = 180.0) -> str:
        """The id of a job that was accepted, however often that took."""
        answer = self.insist("POST", "/v1/jobs", key=key or uuid.uuid4().hex, seconds=seconds, json=spec)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def job(self, job: str) -> dict[str, Any]:
        answer = self.insist("GET", f"/v1/jobs/{job}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def close(self) -> None:
        self._http.close()

    def _note(self, exchange: Exchange) -> None:
        with self._lock:
            self.exchanges.append(exchange)
