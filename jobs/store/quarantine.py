"""Devices set apart, and how they come back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs.model.records import Quarantine
from jobs.store.script_call import Call, fields_of, is_ok
from shardyard.contract.errors import NotFound


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A device in quarantine, with its entry as it is stored: what is decided about it holds for that entry only."""

    device: int
    why: Quarantine
    entry: bytes


def quarantined(node: str) -> Call[tuple[Quarantined, ...]]:
    """The devices of a node that are in quarantine."""

    def parse(reply: Sequence[bytes]) -> tuple[Quarantined, ...]:
        entries = sorted((int(device), entry) for device, entry in fields_of(reply).items())
        return tuple(Quarantined(device, Quarantine.read(entry), entry) for device, entry in entries)

    return Call("quarantine", (node,), parse)


def quarantine_device(node: str, device: int, reason: str) -> Call[None]:
    """Set a device apart, by the operator's command. What runs on it goes on. Raises NotFound on execution."""
    return Call("quarantine_device", (node, device, reason), _device_found(node, device))


def unquarantine(node: str, device: int) -> Call[None]:
    """Bring a device back, by the operator's command. Raises NotFound on execution."""
    return Call("unquarantine", (node, device, ""), _device_found(node, device))


def prove_fit(node: str, found: Quarantined) -> Call[bool]:
    """Bring a device back, on proof. False: its entry has changed since it was found."""
    return Call("unquarantine", (node, found.device, found.entry), is_ok)


def keep_quarantine(node: str, found: Quarantined, reason: str) -> Call[bool]:
    """Note why a device could not be proven fit. False: its entry has changed since it was found."""
    return Call("keep_quarantine", (node, found.device, found.entry, reason), is_ok)


def _device_found(node: str, device: int) -> Callable[[bytes], None]:
    def parse(reply: bytes) -> None:
        if reply == b"missing":
            raise NotFound(f"there is no node {node!r}")
        if reply == b"no_device":
            raise NotFound(f"node {node} has no device {device}")

    return parse
