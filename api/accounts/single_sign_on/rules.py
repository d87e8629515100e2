"""Access rules: which tenant and scopes somebody gets from the claims that the identity provider makes about them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jobs.store.accounts.tokens import PEOPLES_SCOPES, Scope

MAX_FILE_BYTES: Final = 256 * 1024
MAX_RULES: Final = 500
#: Claims that say something only while the provider vouches for it in another one.
_VOUCHED_FOR: Final[Mapping[str, str]] = {"email": "email_verified"}

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class AccessRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has `value` in the claim `claim` gets these scopes in this tenant."""

    claim: _Text
    value: _Text
    tenant: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=len(PEOPLES_SCOPES))]

    def __post_init__(self) -> None:
        if not set(self.scopes) <= set(PEOPLES_SCOPES):
            raise ValueError("the scopes node and join are for machines, not for people")

    def matches(self, claims: Mapping[str, Any]) -> bool:
        """Whether the claim is this value, or a list that has it. An address counts only once it was verified."""
        if claims.get(_VOUCHED_FOR.get(self.claim, ""), True) is not True or (
            self.claim in _VOUCHED_FOR and _VOUCHED_FOR[self.claim] not in claims
        ):
            return False
        found = claims.get(self.claim)
        return self.value in found if isinstance(found, list) else self.value == found


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    rule: Annotated[list[AccessRule], msgspec.Meta(min_length=1, max_length=MAX_RULES)]


def read_rules(path: Path) -> tuple[AccessRule, ...]:
    """The rules of a TOML file.

    Raises:
        ValueError: it cannot be read, or is no list of rules; the message names the file and the field.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the rules of single sign-on cannot be read from {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{path} has more than the {MAX_FILE_BYTES} bytes that rules of single sign-on may have")
    try:
        return tuple(msgspec.toml.decode(text, type=_RulesFile).rule)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} has no rules of single sign-on: {error}; each is a [[rule]] with claim, value, tenant and scopes"
        ) from None


def find_rule(rules: tuple[AccessRule, ...], claims: Mapping[str, Any]) -> AccessRule | None:
    """The first rule that matches these claims; None where somebody has no access."""
    return next((rule for rule in rules if rule.matches(claims)), None)
