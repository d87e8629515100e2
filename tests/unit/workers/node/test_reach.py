import pytest

from workers.node.reach import find_reach


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.20", "2001:db8::7", "::ffff:10.0.0.7", "169.254.3.4"])
def test_an_address_that_others_have_a_way_to_is_on_the_network(address: str) -> None:
    assert find_reach(address, "host-a") == "network"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_a_loopback_address_reaches_nodes_of_the_same_machine(address: str) -> None:
    assert find_reach(address, "host-a") == "loopback:host-a"
    assert find_reach(address, "host-a") != find_reach(address, "host-b")


@pytest.mark.parametrize(
    "address",
    [
        *("", "host-a", "localhost", "host-a.example.org", "127.1", "10.0.0.7:29500", " 10.0.0.7", "10.0.0.256", "\0"),
        *("0.0.0.0", "::", "::ffff:0.0.0.0", "0.1.2.3", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1"),
    ],
)
def test_what_others_cannot_be_sure_to_reach_is_no_reach(address: str) -> None:
    assert find_reach(address, "host-a") == ""


def test_a_machine_without_a_name_has_no_loopback_that_could_be_told_from_others() -> None:
    assert find_reach("127.0.0.1", "") == ""
