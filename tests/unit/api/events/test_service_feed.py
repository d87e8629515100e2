from api.events.service_feed import _fleet_digest
from jobs.model.records import NodeRecord
from jobs.store import FleetRecords

NODE = {
    b"pool": b"default",
    b"address": b"127.0.0.1",
    b"alive": b"1",
    b"registered": b"1",
    b"info": b'{"host": "a", "cores": 2, "version": "1", "devices": []}',
}


def fleet(beat: bytes, held: dict[bytes, bytes]) -> FleetRecords:
    return FleetRecords((NodeRecord.from_fields("a", NODE | {b"beat": beat}, held, {}, {}),), {})


def test_a_fleet_changes_with_what_its_devices_do_and_not_with_its_beats() -> None:
    held = {b"0": b"default/x/1", b"10": b"default/x/1"}
    assert _fleet_digest(fleet(b"1", held)) == _fleet_digest(fleet(b"2", dict(reversed(held.items()))))
    assert _fleet_digest(fleet(b"1", held)) != _fleet_digest(fleet(b"1", {}))
