"""Request bodies about nodes, pools, and machines that join."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas.request_body import parse_body
from jobs.model.error_words import pattern
from jobs.model.pool_policy import PoolPolicy
from jobs.model.settings import MAX_NODE_LENGTH, NODE_PATTERN
from jobs.model.spec import SHOWN_PATTERN
from jobs.model.validation import require_plain

MAX_DRAIN_SECONDS = 30 * 86_400
_NONCE = pattern(r"^[0-9a-f]+$", "hexadecimal digits")


class DrainRequest(BaseModel):
    """How long running attempts may stay on the node; without a deadline, until they end."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deadline_seconds: float | None = Field(
        None,
        ge=0,
        le=MAX_DRAIN_SECONDS,
        allow_inf_nan=False,
        description="after this time, what still runs moves to other nodes; 0: at once",
    )


class QuarantineRequest(BaseModel):
    """Why the device is in quarantine; `reason` is shown with the node."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: Annotated[str, Field(min_length=1, max_length=500, pattern=SHOWN_PATTERN), AfterValidator(require_plain)]


class PoolPolicyRequest(BaseModel):
    """The policy of a pool, all of it: what is left out has its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    box: Literal["any", "user", "full"] = Field(
        "any",
        description="what a node must have to take work: user, a box made without root or a full one; full, one that "
        "root makes",
    )
    network: Literal["none", "closed", "host"] = Field(
        "none",
        description="what jobs get in a box with a network of its own: none, a loopback, but the nodes' where they run "
        "on several; closed, a loopback, and none may run on several nodes; host, the node's",
    )
    preempt: bool = Field(
        False,
        strict=True,
        description="jobs of a higher priority take the devices of others, which save and go back to the queue",
    )


class JoinRequest(BaseModel):
    """A machine that joins as this node. `wants_token`: it needs one for its files, or has one that is good."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: Annotated[str, Field(max_length=MAX_NODE_LENGTH, pattern=NODE_PATTERN)]
    wants_token: bool = True


class ReachRequest(BaseModel):
    """Where a machine that joins listens, at the address that the request comes from, and what it says there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(ge=1024, le=65_535)
    nonce: str = Field(min_length=16, max_length=64, pattern=_NONCE)


def parse_drain(body: bytes) -> DrainRequest:
    """A drain request; no body means no deadline. Raises MalformedJson, InvalidRequest."""
    return parse_body(DrainRequest, body.strip() or b"{}", "the drain request is not valid")


def parse_quarantine(body: bytes) -> QuarantineRequest:
    """Raises MalformedJson, InvalidRequest."""
    return parse_body(QuarantineRequest, body, "the quarantine request is not valid")


def parse_policy(body: bytes) -> PoolPolicy:
    """Raises MalformedJson, InvalidRequest."""
    wanted = parse_body(PoolPolicyRequest, body, "the policy of the pool is not valid")
    return PoolPolicy(wanted.box, wanted.network, preempt=wanted.preempt)


def parse_join(body: bytes) -> JoinRequest:
    """Raises MalformedJson, InvalidRequest."""
    return parse_body(JoinRequest, body, "the request to join is not valid")


def parse_reach(body: bytes) -> ReachRequest:
    """Raises MalformedJson, InvalidRequest."""
    return parse_body(ReachRequest, body, "the request is not valid")
