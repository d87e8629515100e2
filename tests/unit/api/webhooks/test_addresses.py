"""Where webhooks may go: rules about URLs and addresses."""

import ipaddress

import pytest

from api.webhooks.addresses import AddressRules, RefusedTarget, is_public
from jobs.model.settings import parse_networks
from shardyard.contract.errors import InvalidRequest

PUBLIC = AddressRules()
PRIVATE = AddressRules(parse_networks("10.1.0.0/16, 127.0.0.0/8,fd00:1::/64"))


def problem(rules: AddressRules, url: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        rules.check_url(url)
    (wrong,) = refused.value.fields
    assert wrong.field == "url"
    return wrong.message


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(RefusedTarget, match="not public"):
        PUBLIC.check_addresses("https", [address])
    with pytest.raises(RefusedTarget, match="not public"):
        PUBLIC.check_addresses("https", ["93.184.216.34", address])


@pytest.mark.parametrize("address", ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe"])
def test_an_address_of_ipv4_that_is_written_as_one_of_ipv6_is_that_of_ipv4(address: str) -> None:
    with pytest.raises(RefusedTarget):
        PUBLIC.check_addresses("https", [address])
    PUBLIC.check_addresses("https", ["::ffff:93.184.216.34"])
    PRIVATE.check_addresses("http", ["::ffff:10.1.2.3"])


def test_public_addresses_are_allowed() -> None:
    PUBLIC.check_addresses("https", ["93.184.216.34", "2606:4700::6810:84e5"])


def test_a_host_without_an_address_is_refused() -> None:
    with pytest.raises(RefusedTarget, match="no address"):
        PUBLIC.check_addresses("https", [])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"],
)
def test_a_private_address_is_refused_when_a_webhook_is_made_whatever_its_form(host: str) -> None:
    assert "not public" in problem(PUBLIC, f"https://{host}/")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/", "use https://"),
        ("ftp://example.com/", "begins with https://"),
        ("file:///etc/passwd", "begins with https://"),
        ("gopher://example.com/", "begins with https://"),
        ("example.com/hook", "begins with https://"),
        ("https://", "begins with https://"),
        ("https:///path", "begins with https://"),
        ("https://user:password@example.com/", "user and password"),
        ("https://token@example.com/", "user and password"),
        ("https://example.com@127.0.0.1/", "user and password"),
        ("https://example.com/#part", "follows #"),
        ("https://exa mple.com/", "neither a name"),
        ("https://example.com:99999/", "port"),
        ("https://[fe80::1%25eth0]/", "neither a name"),
        ("https://exa%00mple.com/", "neither a name"),
        ("https://example.com/\r\nX: y", "URL"),
        ("https://example.com/" + "x" * 2048, "2048"),
    ],
)
def test_a_url_that_a_webhook_cannot_have_names_its_field_and_says_why(url: str, words: str) -> None:
    assert words in problem(PUBLIC, url)


def test_an_operator_allows_networks_and_http_in_them_only() -> None:
    assert PRIVATE.check_url("http://10.1.2.3:8080/hook").port == 8080
    PRIVATE.check_addresses("https", ["10.1.2.3", "fd00:1::5", "93.184.216.34"])
    assert "not public" in problem(PRIVATE, "https://10.2.0.1/")
    assert "outside of the networks" in problem(PRIVATE, "http://93.184.216.34/")
    assert "user and password" in problem(PRIVATE, "http://user@10.1.2.3/")
    with pytest.raises(RefusedTarget, match="outside of the networks"):
        PRIVATE.check_addresses("http", ["10.1.2.3", "93.184.216.34"])


def test_an_allowed_network_of_everything_allows_private_addresses_too() -> None:
    AddressRules(parse_networks("0.0.0.0/0, ::/0")).check_addresses("http", ["192.168.0.1", "::1"])


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "somewhere", "10.0.0.0/8;127.0.0.0/8"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_networks(text)
