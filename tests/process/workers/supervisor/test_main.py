import json
import multiprocessing
import os
from pathlib import Path

import pytest

from tests.support.samples.attempts import a_launch
from workers.supervisor.main import devices_to_quarantine
from workers.supervisor.process_setup import SupervisorCredentials, read_credentials
from workers.supervisor.rendezvous import bind_port


def test_credentials_come_by_the_pipe_which_is_closed_after_them() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    with writer:
        writer.send_bytes(json.dumps({"control_url": "unix:///c", "telemetry_url": "unix:///t"}).encode())
        assert read_credentials(reader) == SupervisorCredentials("unix:///c", "unix:///t")
    assert reader.closed


def test_a_worker_that_died_before_it_wrote_the_credentials_is_noticed() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    writer.close()
    with reader, pytest.raises(EOFError):
        read_credentials(reader)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_the_rendezvous_listens_on_one_address_and_a_free_port(address: str) -> None:
    with bind_port(address) as one, bind_port(address) as other:
        assert one.getsockname()[0] == other.getsockname()[0] == address
        assert one.getsockname()[1] != other.getsockname()[1]


def test_every_device_of_an_attempt_that_would_not_die_goes_to_quarantine_with_the_culprits_name() -> None:
    launch = a_launch(Path("state"), devices=2)
    who = f"would not die after {launch.attempt}: process {os.getpid()} (python)"
    assert devices_to_quarantine(launch, {os.getpid(): "python"}) == {0: who, 1: who}
    assert devices_to_quarantine(launch, {}) == {}
