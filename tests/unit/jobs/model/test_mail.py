"""Mail addresses and mail servers, as settings and requests name them."""

import pytest
from pydantic import ValidationError

from jobs.model.mail import MailServer, domain_of, parse_domains, parse_mail_server
from jobs.model.settings import Settings


@pytest.mark.parametrize("address", ["a@b", "first.last+tag@Mail.Example.com", "x_y-z@sub.example.co"])
def test_a_plain_address_has_a_domain(address: str) -> None:
    assert domain_of(address) == address.rpartition("@")[2].lower()


@pytest.mark.parametrize(
    "address",
    [
        *("", "@", "a@", "@b", "a", "a@b@c", "a b@c.d", "a..b@c.d", ".a@c.d", "a@-c.d", "a@c..d", "a@c.d."),
        *("a@b.c\n", "a@b.c\r\nBcc: x@y.z", "a\r\n@b.c", "a@b.c\0", "a@b.c,d@e.f", "a@b.c d@e.f", "<a@b.c>"),
        *("A <a@b.c>", '"a"@b.c', "a%x@b.c", "a!x@b.c", "a@[127.0.0.1]", "ä@b.c", "a@bücher.de", "a@b.c\u2028"),
        *("a" * 65 + "@b.c", "a@" + "b" * 64 + ".c", "a@" + ".".join(["b" * 60] * 5)),
    ],
)
def test_what_is_no_plain_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="plain address"):
        domain_of(address)


def test_a_server_is_named_by_scheme_host_and_port() -> None:
    assert parse_mail_server("smtp://mail.example.com") == MailServer("smtp", "mail.example.com", 587)
    assert parse_mail_server("smtps://[::1]:2465") == MailServer("smtps", "::1", 2465)
    for text in ("mail.example.com", "http://x", "smtp://user:pass@x", "smtp://x:0", "smtp://x:70000", "smtp://x/y"):
        with pytest.raises(ValueError, match=r"smtp://|port"):
            parse_mail_server(text)


def test_domains_are_listed_with_commas() -> None:
    assert parse_domains(" Example.com, *,") == {"example.com", "*"}
    with pytest.raises(ValueError, match="not a domain"):
        parse_domains("example.com, a@b")


def test_a_server_without_an_address_to_send_from_is_refused() -> None:
    with pytest.raises(ValidationError, match="SHARDYARD_MAIL_FROM"):
        Settings(mail_server="smtp://mail.example.com")
    assert "pa55" not in repr(Settings(mail_server="smtp://x", mail_from="a@b.c", mail_password="pa55"))
