"""`profile.json`, beside the traces of a profile: which ranks have a trace, and why others have none."""

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from jobs.files import paths
from shardyard.contract.responses import ProfileView

RECORD_NAME = "profile.json"
_decoder = msgspec.json.Decoder(ProfileView)


def write_profile(directory: Path, view: ProfileView) -> None:
    """Raises OSError."""
    draft = directory / f".{RECORD_NAME}"
    draft.write_bytes(msgspec.json.encode(view))
    os.replace(draft, directory / RECORD_NAME)


def list_profiles(attempt: Path) -> list[ProfileView]:
    """The profiles of an attempt that have ended, in their order. What cannot be read is left out."""
    found = []
    for file in paths.profiles_dir(attempt).glob(f"*/{RECORD_NAME}"):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(_decoder.decode(file.read_bytes()))
    return sorted(found, key=lambda one: one.number)
