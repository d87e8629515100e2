import json

import pytest

from jobs.model.settings import Settings
from jobs.scheduling.celery_config import broker_url, celery_config


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("redis://host:6379/2", "redis://host:6379/2"),
        ("rediss://:pw@host:6379/0?ssl_cert_reqs=required", "rediss://:pw@host:6379/0?ssl_cert_reqs=required"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock?virtual_host=0"),
        ("unix://:p%40w@/run/r.sock?db=3", "redis+socket://:p%40w@/run/r.sock?virtual_host=3"),
        ("unix://user:pw@/run/r.sock", "redis+socket://user:pw@/run/r.sock?virtual_host=0"),
        ("unix:///run/r.sock?password=pw", "redis+socket://:pw@/run/r.sock?virtual_host=0"),
    ],
)
def test_a_redis_url_becomes_one_that_celery_reads(given: str, wanted: str) -> None:
    assert broker_url(given) == wanted


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="amqp"):
        broker_url("amqp://host")


def test_messages_are_json_only_acknowledged_early_and_leave_no_result() -> None:
    config = celery_config(Settings.model_validate({"redis_url": "redis://host"}))
    assert config["accept_content"] == ["json"]
    assert config["task_serializer"] == "json"
    assert config["task_acks_late"] is False
    assert config["result_backend"] is None
    assert config["broker_transport_options"]["global_keyprefix"] == "sy:celery:"
    assert json.dumps(config)
