"""URLs of a Redis that Sentinels watch."""

import pytest

from jobs.model.settings import Settings
from jobs.scheduling.celery_config import celery_config
from jobs.store.connections.sentinels import SENTINEL_SECONDS, parse_sentinel_url, replicas_of


def test_a_url_names_the_sentinels_and_the_group_of_servers() -> None:
    found = parse_sentinel_url("redis+sentinel://a:1,b,[::1]:3/main")
    assert found.sentinels == (("a", 1), ("b", 26_379), ("::1", 3))
    assert (found.name, found.replicas, found.is_tls) == ("main", 1, False)
    assert found.client_options == {"ssl": False}


def test_servers_and_sentinels_have_logins_of_their_own_and_tls_in_common() -> None:
    found = parse_sentinel_url(
        "rediss+sentinel://shardyard-api:p%40ss@a/main?db=2&replicas=2&sentinel_username=s&sentinel_password=q"
        "&ssl_ca_certs=/ca.pem&ssl_check_hostname=false"
    )
    tls = {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    assert found.client_options == tls | {"username": "shardyard-api", "password": "p@ss", "db": 2}
    deadlines = {"socket_timeout": SENTINEL_SECONDS, "socket_connect_timeout": SENTINEL_SECONDS}
    assert found.sentinel_options == tls | {"username": "s", "password": "q"} | deadlines
    assert found.replicas == 2


def test_only_where_sentinels_may_choose_another_server_replicas_must_have_a_change() -> None:
    assert replicas_of("redis://a") == replicas_of("unix:///s") == replicas_of("redis+sentinel://a/m?replicas=0") == 0
    assert replicas_of("redis+sentinel://a/m") == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://a/0", "is not a URL of Sentinels"),
        ("redis+sentinel://a:1", "must name the group"),
        ("redis+sentinel://a:1/", "must name the group"),
        ("redis+sentinel://a:1/m/0", "must name the group"),
        ("redis+sentinel:///m", "'' is not the address"),
        ("redis+sentinel://u:secret@a:1,,b/m", "'' is not the address"),
        ("redis+sentinel://a:0/m", "'a:0' is not the address"),
        ("redis+sentinel://a:65536/m", "'a:65536' is not the address"),
        ("redis+sentinel://a:x/m", "'a:x' is not the address"),
        ("redis+sentinel://" + ",".join("abcdefghijklmnopq") + "/m", "names 17 Sentinels"),
        ("redis+sentinel://a/m?replicas=-1", "must be a number from 0 to 16"),
        ("redis+sentinel://a/m?replicas=17", "must be a number from 0 to 16"),
        ("redis+sentinel://a/m?replicas=", "must be a number from 0 to 16"),
    ],
)
def test_what_cannot_be_read_is_refused_without_the_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        parse_sentinel_url(url)
    assert "secret" not in str(refused.value)


def test_celery_gets_every_sentinel_and_the_login_of_the_servers() -> None:
    url = "rediss+sentinel://u:p%40@a:1,[::1]/main?db=3&sentinel_password=q&ssl_ca_certs=/ca.pem"
    config = celery_config(Settings.model_validate({"redis_url": url}))
    assert config["broker_url"] == "sentinel://u:p%40@a:1/3;sentinel://u:p%40@[::1]:26379/3"
    assert config["broker_use_ssl"] == {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "required"}
    options = config["broker_transport_options"]
    assert options["master_name"] == "main"
    assert options["global_keyprefix"] == "sy:celery:"
    assert options["sentinel_kwargs"]["password"] == "q"
    assert options["sentinel_kwargs"]["ssl"] is True
