"""Verification of deliveries on a receiver's side."""

import hashlib
import hmac
import json

import pytest

from shardyard.webhooks import InvalidSignature, sign, verify

SECRET = "whsec_of_these_tests"
BODY = json.dumps({"id": "d-1", "kind": "job.failed", "at": "2026-01-02T03:04:05Z", "data": {"a": 1}}).encode()


def test_a_signature_is_hmac_sha256_of_time_dot_body() -> None:
    expected = hmac.new(SECRET.encode(), b"1000." + BODY, hashlib.sha256).hexdigest()
    assert sign(SECRET, BODY, now=1000) == f"t=1000,v1={expected}"


def test_a_delivery_is_verified_and_read() -> None:
    event = verify(SECRET, sign(SECRET, BODY), BODY)
    assert (event.id, event.kind, event.missed, event.data) == ("d-1", "job.failed", 0, {"a": 1})


def test_one_of_several_signatures_is_enough() -> None:
    at, right = sign(SECRET, BODY, now=1000).split(",")
    verify(SECRET, f"{at}, v1={'0' * 64},{right}", BODY, now=1000)


@pytest.mark.parametrize("late", [-301, 301])
def test_an_old_delivery_or_one_from_the_future_is_refused(late: int) -> None:
    with pytest.raises(InvalidSignature, match="more than 300 s ago"):
        verify(SECRET, sign(SECRET, BODY, now=1000), BODY, now=1000 + late)


@pytest.mark.parametrize(
    "signature",
    ["", "t=1000", "v1=00", "t=,v1=00", "t=1e3,v1=00", "t=1000,t=1001,v1=00", "t=aa,v1=00", "x" * 100_000],
)
def test_a_header_of_another_form_is_refused(signature: str) -> None:
    with pytest.raises(InvalidSignature):
        verify(SECRET, signature, BODY, now=1000)


def test_another_body_secret_or_time_does_not_fit() -> None:
    signature = sign(SECRET, BODY, now=1000)
    for secret, header, body in (
        (SECRET, signature, BODY + b" "),
        ("another", signature, BODY),
        (SECRET, signature.replace("t=1000", "t=1001"), BODY),
    ):
        with pytest.raises(InvalidSignature, match="does not match"):
            verify(secret, header, body, now=1000)


def test_a_signed_body_that_is_no_event_is_refused() -> None:
    with pytest.raises(InvalidSignature, match="is not an event"):
        verify(SECRET, sign(SECRET, b"[]"), b"[]")
