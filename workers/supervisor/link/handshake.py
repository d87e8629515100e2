"""How two supervisors prove to each other that they know the secret of an attempt, and agree on keys.

    leader to follower      MAGIC, nonce (32 bytes)
    follower to leader      length (u32), PartHello, nonce (32 bytes), proof (32 bytes)
    leader to follower      length (u32), refusal, or nothing, proof (32 bytes)

A proof is an HMAC-SHA256 with the secret over a label, both nonces and the hello; the leader's covers its answer, too.
Labels differ by direction, so nobody can send a proof back to its maker, and the nonces are new for each connection, so
none is good for a second one. Nothing is decoded before its proof is found right.
"""

import hashlib
import hmac
import ipaddress
import secrets
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

#: What a leader begins with. The number changes with whatever makes versions unable to read each other's handshake.
MAGIC = b"shardyard link 1"
NONCE_BYTES = 32
SECRET_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
#: All that a follower sends before it is authenticated, and the longest answer to it.
MAX_HELLO_BYTES = 4096
MAX_ANSWER_BYTES = 4096
#: Each side's patience with the other, once that has begun to speak.
HANDSHAKE_SECONDS = 5.0

LENGTH = struct.Struct(">I")


class BadHandshake(ValueError):
    """The peer does not speak this protocol, or does not know the secret."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a leader listens, and the secret that lets its followers in: what the control Redis keeps for them."""

    address: str
    port: int
    secret: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Raises ValueError where this is no text of an endpoint. The text is not in the error: it has the secret."""
        try:
            address, port, secret = text.split(" ")
            endpoint = cls(require_address(address), int(port), bytes.fromhex(secret))
        except ValueError:
            raise ValueError("the leader's endpoint is not of the form 'address port secret'") from None
        if not 0 < endpoint.port < 2**16 or len(endpoint.secret) != SECRET_BYTES:
            raise ValueError("the leader's endpoint has an impossible port or secret")
        return endpoint

    def __str__(self) -> str:
        return f"{self.address} {self.port} {self.secret.hex()}"


class SessionKeys(NamedTuple):
    """Keys of one connection, for the frames of each direction."""

    to_leader: bytes
    to_follower: bytes


@dataclass(frozen=True, slots=True)
class Transcript:
    """What both sides have seen of a handshake."""

    leader_nonce: bytes
    follower_nonce: bytes
    hello: bytes

    def prove_follower(self, secret: bytes) -> bytes:
        return self._mac(secret, b"follower")

    def prove_leader(self, secret: bytes, answer: bytes) -> bytes:
        return self._mac(secret, b"leader", answer)

    def derive_keys(self, secret: bytes) -> SessionKeys:
        return SessionKeys(self._mac(secret, b"key to leader"), self._mac(secret, b"key to follower"))

    def _mac(self, secret: bytes, label: bytes, more: bytes = b"") -> bytes:
        # Parts of variable length are hashed first: no two lists of parts make the same bytes.
        parts = (label, self.leader_nonce, self.follower_nonce, self.hello, more)
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(secret, digests, "sha256")


def require_address(address: str) -> str:
    """The address, if it is one that a connection can be made to. A name is none: it may mean another host elsewhere.

    Raises ValueError: it is not.
    """
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_unspecified or found.is_multicast or "%" in address:  # an interface behind % is one of this host
        raise ValueError(f"{address} is not the address of one host")
    return address


def make_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


# -- what the follower does ------------------------------------------------------------------------

CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES


def read_challenge(challenge: bytes) -> bytes:
    """The leader's nonce. Raises BadHandshake: this is the challenge of something else."""
    if not challenge.startswith(MAGIC):
        raise BadHandshake("what answers there is not a leader of this version")
    return challenge[len(MAGIC) :]


def make_hello(transcript: Transcript, secret: bytes) -> bytes:
    """All that a follower sends. Raises ValueError: the PartHello is longer than a leader reads."""
    length = LENGTH.pack(len(transcript.hello))
    whole = b"".join((length, transcript.hello, transcript.follower_nonce, transcript.prove_follower(secret)))
    if len(whole) > MAX_HELLO_BYTES:
        raise ValueError(f"a hello of {len(whole)} bytes is over the limit of {MAX_HELLO_BYTES}")
    return whole


def answer_size(length: bytes) -> int:
    """Bytes that follow the length of an answer. Raises BadHandshake: more than any leader sends."""
    (size,) = LENGTH.unpack(length)
    if size > MAX_ANSWER_BYTES:
        raise BadHandshake(f"an answer of {size} bytes is over the limit of {MAX_ANSWER_BYTES}")
    return int(size) + PROOF_BYTES


def read_answer(transcript: Transcript, secret: bytes, answer: bytes) -> str:
    """Why the leader refuses, or nothing. `answer` is without its length.

    Raises BadHandshake: it comes from somebody who does not know the secret.
    """
    refusal, proof = answer[:-PROOF_BYTES], answer[-PROOF_BYTES:]
    if not hmac.compare_digest(proof, transcript.prove_leader(secret, refusal)):
        raise BadHandshake("what answers there does not know the attempt's secret")
    return refusal.decode(errors="replace")


# -- what the leader does --------------------------------------------------------------------------


def make_challenge(nonce: bytes) -> bytes:
    return MAGIC + nonce


def hello_size(received: bytes) -> int | None:
    """How long a hello is with all that belongs to it, once its first bytes are there.

    Raises BadHandshake: longer than may be, or more has come than that.
    """
    if len(received) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack_from(received)
    whole = LENGTH.size + int(size) + NONCE_BYTES + PROOF_BYTES
    if whole > MAX_HELLO_BYTES:
        raise BadHandshake("no hello of a follower: it begins with other bytes, or is too long")
    if len(received) > whole:
        raise BadHandshake("it went on after its hello")
    return whole


def read_hello(leader_nonce: bytes, received: bytes, secret: bytes) -> Transcript:
    """What a whole hello says, with its proof checked. Raises BadHandshake: the proof is wrong."""
    body, proof = received[LENGTH.size : -PROOF_BYTES], received[-PROOF_BYTES:]
    transcript = Transcript(leader_nonce, body[-NONCE_BYTES:], body[:-NONCE_BYTES])
    if not hmac.compare_digest(proof, transcript.prove_follower(secret)):
        raise BadHandshake("it does not know the attempt's secret, or replays what another node sent")
    return transcript


def make_answer(transcript: Transcript, secret: bytes, refusal: str) -> bytes:
    """What the leader answers. An empty refusal lets the follower in."""
    answer = refusal.encode()[:MAX_ANSWER_BYTES]
    return LENGTH.pack(len(answer)) + answer + transcript.prove_leader(secret, answer)
