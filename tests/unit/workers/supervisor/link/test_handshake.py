"""Proofs of a handshake: each is good for one connection, one direction and one hello."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.supervisor.link.handshake import (
    CHALLENGE_BYTES,
    LENGTH,
    MAX_ANSWER_BYTES,
    MAX_HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    BadHandshake,
    Endpoint,
    Transcript,
    answer_size,
    hello_size,
    make_answer,
    make_challenge,
    make_hello,
    make_nonce,
    read_answer,
    read_challenge,
    read_hello,
    require_address,
)

SECRET = b"s" * 32
TALK = Transcript(b"l" * NONCE_BYTES, b"f" * NONCE_BYTES, b"hello")


def test_both_sides_end_with_the_same_transcript_and_keys() -> None:
    nonce = make_nonce()
    challenge = make_challenge(nonce)
    assert len(challenge) == CHALLENGE_BYTES
    follower = Transcript(read_challenge(challenge), make_nonce(), b"hello")
    sent = make_hello(follower, SECRET)
    assert hello_size(sent) == len(sent)
    leader = read_hello(nonce, sent, SECRET)
    assert leader == follower
    answer = make_answer(leader, SECRET, "")
    assert answer_size(answer[: LENGTH.size]) == len(answer) - LENGTH.size
    assert read_answer(follower, SECRET, answer[LENGTH.size :]) == ""
    assert leader.derive_keys(SECRET) == follower.derive_keys(SECRET)


def test_keys_differ_by_direction_and_by_each_thing_that_they_depend_on() -> None:
    others = [
        replace(TALK, leader_nonce=b"x" * NONCE_BYTES),
        replace(TALK, follower_nonce=b"x" * NONCE_BYTES),
        replace(TALK, hello=b"other"),
        Transcript(TALK.follower_nonce, TALK.leader_nonce, TALK.hello),
    ]
    keys = [key for talk in [TALK, *others] for key in talk.derive_keys(SECRET)]
    keys += TALK.derive_keys(b"t" * 32)
    proofs = [TALK.prove_follower(SECRET), TALK.prove_leader(SECRET, b"")]
    assert len({*keys, *proofs}) == len(keys) + len(proofs)


def test_a_recorded_hello_is_of_no_use_for_another_challenge() -> None:
    recorded = make_hello(TALK, SECRET)
    with pytest.raises(BadHandshake, match="does not know the attempt's secret"):
        read_hello(make_nonce(), recorded, SECRET)


def test_a_proof_that_comes_back_to_its_maker_is_none() -> None:
    with pytest.raises(BadHandshake, match="secret"):
        read_answer(TALK, SECRET, TALK.prove_follower(SECRET))
    leaders = TALK.prove_leader(SECRET, b"")
    forged = LENGTH.pack(len(TALK.hello)) + TALK.hello + TALK.follower_nonce + leaders
    with pytest.raises(BadHandshake, match="secret"):
        read_hello(TALK.leader_nonce, forged, SECRET)


@given(st.data())
def test_a_hello_with_a_flipped_bit_is_refused(data: st.DataObject) -> None:
    sent = bytearray(make_hello(TALK, SECRET))
    bit = data.draw(st.integers(0, len(sent) * 8 - 1))
    sent[bit // 8] ^= 1 << bit % 8
    try:
        whole = hello_size(bytes(sent)) == len(sent)  # else the leader waits for the rest, for seconds at most
    except BadHandshake:
        return
    if whole:
        with pytest.raises(BadHandshake):
            read_hello(TALK.leader_nonce, bytes(sent), SECRET)
    else:
        assert bit < LENGTH.size * 8


@given(st.data())
def test_an_answer_with_a_flipped_bit_is_not_the_leaders(data: st.DataObject) -> None:
    answer = bytearray(make_answer(TALK, SECRET, "part 1 has joined already")[LENGTH.size :])
    bit = data.draw(st.integers(0, len(answer) * 8 - 1))
    answer[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadHandshake):
        read_answer(TALK, SECRET, bytes(answer))


def test_a_refusal_is_not_an_admission_with_its_text_cut_off() -> None:
    answer = make_answer(TALK, SECRET, "no")[LENGTH.size :]
    with pytest.raises(BadHandshake):
        read_answer(TALK, SECRET, answer[-PROOF_BYTES:])


def test_the_longest_refusal_is_one_that_a_follower_reads() -> None:
    answer = make_answer(TALK, SECRET, "ü" * MAX_ANSWER_BYTES)
    answer_size(answer[: LENGTH.size])
    assert read_answer(TALK, SECRET, answer[LENGTH.size :]).startswith("üüü")


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"\xff" * 40, LENGTH.pack(MAX_HELLO_BYTES), b"\x16\x03\x01\x02"]
)
def test_the_first_bytes_tell_that_something_is_no_hello(start: bytes) -> None:
    with pytest.raises(BadHandshake, match="no hello"):
        hello_size(start)


def test_nothing_may_follow_a_hello() -> None:
    with pytest.raises(BadHandshake, match="went on"):
        hello_size(make_hello(TALK, SECRET) + b"x")


@pytest.mark.parametrize("received", [b"", b"\0", b"\0\0\0"])
def test_a_hello_of_which_little_has_come_may_become_one(received: bytes) -> None:
    assert hello_size(received) is None


def test_a_hello_that_no_leader_reads_is_not_sent() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        make_hello(replace(TALK, hello=bytes(MAX_HELLO_BYTES)), SECRET)


def test_other_services_are_no_leaders() -> None:
    with pytest.raises(BadHandshake, match="not a leader"):
        read_challenge(b"SSH-2.0-OpenSSH_9.2p1".ljust(CHALLENGE_BYTES))
    with pytest.raises(BadHandshake, match="over the limit"):
        answer_size(b"\xff" * LENGTH.size)


# -- endpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.2", "fd00::7"])
def test_an_endpoint_is_one_line_and_is_read_from_it(address: str) -> None:
    endpoint = Endpoint(address, 40_000, SECRET)
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_the_secret_of_an_endpoint_is_not_shown() -> None:
    endpoint = Endpoint("10.0.0.1", 40_000, SECRET)
    assert SECRET.hex() not in repr(endpoint)
    assert repr(SECRET) not in repr(endpoint)
    with pytest.raises(ValueError) as caught:
        Endpoint.parse(f"gpu-1 40000 {SECRET.hex()}")
    assert SECRET.hex() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1 40000",
        "10.0.0.1 40000 xyz",
        f"10.0.0.1 0 {SECRET.hex()}",
        f"10.0.0.1 65536 {SECRET.hex()}",
        f"10.0.0.1 4e4 {SECRET.hex()}",
        f"10.0.0.1 40000 {SECRET.hex()[2:]}",
        f"localhost 40000 {SECRET.hex()}",
        f"10.0.0.1  40000 {SECRET.hex()}",
    ],
)
def test_other_texts_are_no_endpoints(text: str) -> None:
    with pytest.raises(ValueError, match="the leader's endpoint"):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    "address", ["localhost", "gpu-1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "fe80::1%eth0", "::ffff:0.0.0.0", ""]
)
def test_names_and_addresses_of_no_single_host_are_refused(address: str) -> None:
    with pytest.raises(ValueError):
        require_address(address)
