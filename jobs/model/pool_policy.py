"""What an operator demands of a pool's nodes, and allows its jobs."""

import msgspec

from jobs.model.error_words import pattern

#: Of the names of pools.
MAX_POOL_LENGTH = 63
POOL_PATTERN = pattern(
    r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$",
    "lower-case letters, digits, dots, underscores and hyphens, a letter or digit at both ends",
)
#: Boxes by what they keep apart, the least first. What a later version of the service calls its box counts as none.
BOX_LEVELS = ("none", "user", "full")
#: The least box that each demand accepts. What a later version may demand is more than any box of this one.
_ACCEPTED_FROM = {"any": 0, "user": 1, "full": 2}


class PoolPolicy(msgspec.Struct, frozen=True):
    """`box`: the box that a node must have to take work, `any`, `user` or `full`. `network`: what jobs have where the
    box has a network of its own, `none` (their own loopback; the node's, where they run on several), `closed` (the
    same, and none may run on several nodes) or `host` (the node's). `preempt`: jobs of a higher priority take the
    devices of others."""

    box: str = "any"
    network: str = "none"
    preempt: bool = False

    def accepts_box(self, level: str) -> bool:
        """Whether a node whose box is of this level may take work."""
        has = BOX_LEVELS.index(level) if level in BOX_LEVELS else 0
        return has >= _ACCEPTED_FROM.get(self.box, len(BOX_LEVELS))


DEFAULT_POLICY = PoolPolicy()
