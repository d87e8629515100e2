"""Devices set apart, and how they come back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.model.records import Quarantine
from jobs.protocol.names import quarantine_key
from jobs.store.call import Call, call_function, is_ok, read_hash
from shardyard.contract.errors import NotFound


@dataclass(frozen=True, slots=True)
class QuarantinedDevice:
    """A device in quarantine, with its entry as it is stored: what is decided about it holds for that entry only."""

    device: int
    why: Quarantine
    entry: bytes


def list_quarantined(node: str) -> Call[tuple[QuarantinedDevice, ...]]:
    def decode(reply: Sequence[bytes]) -> tuple[QuarantinedDevice, ...]:
        entries = sorted((int(device), entry) for device, entry in read_hash(reply).items())
        return tuple(QuarantinedDevice(device, Quarantine.from_entry(entry), entry) for device, entry in entries)

    return Call(("HGETALL", quarantine_key(node)), decode)


def quarantine_device(node: str, device: int, reason: str) -> Call[None]:
    """Set a device apart, by the operator's command. What runs on it goes on. Raises NotFound on execution."""
    return call_function("quarantine_device", _raise_if_missing(node, device), node=node, device=device, reason=reason)


def unquarantine(node: str, device: int) -> Call[None]:
    """Bring a device back, by the operator's command. Raises NotFound on execution."""
    return call_function("unquarantine", _raise_if_missing(node, device), node=node, device=device, entry="")


def unquarantine_proven(node: str, found: QuarantinedDevice) -> Call[bool]:
    """Bring a device back, on proof. False: its entry has changed since it was found."""
    return call_function("unquarantine", is_ok, node=node, device=found.device, entry=found.entry)


def retain_quarantine(node: str, found: QuarantinedDevice, reason: str) -> Call[bool]:
    """Note why a device could not be proven fit. False: its entry has changed since it was found."""
    return call_function("retain_quarantine", is_ok, node=node, device=found.device, entry=found.entry, reason=reason)


def _raise_if_missing(node: str, device: int) -> Callable[[bytes], None]:
    def decode(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")
        if reply == b"no_device":
            raise NotFound(f"node {node} has no device {device}")

    return decode
