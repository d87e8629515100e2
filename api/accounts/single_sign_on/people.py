"""What an identity provider says: who somebody is, or why they have not signed in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SignedInPerson:
    """`subject` identifies somebody at the provider for ever; `name` is for people."""

    subject: str
    name: str
    claims: Mapping[str, Any]


class ProviderRefused(Exception):
    """The provider refused a request, with an error code of OAuth 2."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
