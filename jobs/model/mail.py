"""Mail addresses and the mail server, as settings and requests name them."""

import re
from typing import Literal

import msgspec

MAX_ADDRESS_LENGTH = 254
#: Plain addresses only. What a server could take for more than one address, a route or a header is in none of them.
_LOCAL_PART = r"[A-Za-z0-9_+&'=~-]+(?:\.[A-Za-z0-9_+&'=~-]+)*"
_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ADDRESS = re.compile(rf"(?=.{{3,{MAX_ADDRESS_LENGTH}}}\Z)(?=[^@]{{1,64}}@){_LOCAL_PART}@({_DOMAIN})", re.ASCII)
_DOMAIN_ALONE = re.compile(_DOMAIN, re.ASCII)
_SERVER = re.compile(r"(smtps?)://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?", re.ASCII)
_PORTS = {"smtp": 587, "smtps": 465}


class MailServer(msgspec.Struct, frozen=True):
    """`smtp` begins plain and asks for TLS (STARTTLS); `smtps` begins with TLS."""

    scheme: Literal["smtp", "smtps"]
    host: str
    port: int


def parse_mail_server(text: str) -> MailServer:
    """Of `smtp://host:port` or `smtps://host:port`. Raises ValueError."""
    found = _SERVER.fullmatch(text.strip())
    if found is None:
        raise ValueError("send smtp://host:port (with STARTTLS) or smtps://host:port, without user and password")
    port = int(found[3] or _PORTS[found[1]])
    if not 1 <= port <= 65_535:
        raise ValueError("the port must be from 1 to 65535")
    return MailServer(found[1], found[2].strip("[]"), port)  # type: ignore[arg-type]


def domain_of(address: str) -> str:
    """The domain of a mail address, in lower case. Raises ValueError where the text is no plain address."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError("send a plain address, for example ml-team@example.com")
    return found[1].lower()


def parse_domains(text: str) -> frozenset[str]:
    """Domains with commas between them; `*` stands for all. Raises ValueError."""
    domains = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    for domain in domains - {"*"}:
        if _DOMAIN_ALONE.fullmatch(domain) is None:
            raise ValueError(f"{domain[:64]!r} is not a domain")
    return domains
