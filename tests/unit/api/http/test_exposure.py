from api.http.exposure import is_loopback


def test_loopback_is_told_from_the_network() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))
